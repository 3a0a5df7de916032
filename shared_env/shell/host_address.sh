# shellcheck shell=sh
# _tlmn_address: replaces the name in _tlmn_host by an address that other nodes can use; keeps the name
# where none is known. NodeAddr first: Slurm's own daemons reach the node there, whatever its name resolves to.
_tlmn_address() {
    set -- "$_tlmn_host"
    case $1 in *[!0-9.]*) ;; *) return 0 ;; esac
    if [ -z "${_tlmn_suffix:-}" ]; then
        _tlmn_found=$(scontrol show node "$1" 2> /dev/null) || _tlmn_found=
        case $_tlmn_found in
            *NodeAddr=*)
                _tlmn_found=${_tlmn_found#*NodeAddr=}
                _tlmn_host=${_tlmn_found%%[!0-9A-Za-z._:-]*}
                ;;
        esac
    fi
    case $_tlmn_host in
        *:*) ;;
        *[!0-9.]*)
            # IPv4 before IPv6; an address of the loopback or the link is no meeting point.
            for _tlmn_found in $(getent ahostsv4 "$_tlmn_host") $(getent ahosts "$_tlmn_host") \
                $([ "$1" != "${SLURMD_NODENAME:-}" ] || hostname -I); do
                case $_tlmn_found in
                    127.* | ::1 | 169.254.* | fe80:* | 0.0.0.0 | ::) ;;
                    *.*.*.* | *:*:*)
                        _tlmn_host=$_tlmn_found
                        break
                        ;;
                esac
            done
            ;;
    esac
    unset _tlmn_found
}
