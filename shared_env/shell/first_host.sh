# shellcheck shell=sh
# _tlmn_first_host HOSTLIST: the first host of a Slurm hostlist, left in _tlmn_host.
# Splits at "]" instead of removing a suffix: the cost must not grow with the square of the list.
_tlmn_first_host() {
    _tlmn_host=
    _tlmn_ifs=${IFS+x$IFS}
    case $- in *f*) _tlmn_glob=off ;; *) _tlmn_glob=on; set -f ;; esac
    IFS="]"
    # shellcheck disable=SC2086
    set -- ${1:-}
    case $_tlmn_ifs in x*) IFS=${_tlmn_ifs#x} ;; *) unset IFS ;; esac
    case $_tlmn_glob in on) set +f ;; esac
    while [ "$#" -gt 0 ]; do
        _tlmn_host=$_tlmn_host${1%%[[,]*}
        _tlmn_rest=${1#"${1%%[[,]*}"}
        case $_tlmn_rest in
            "["*) ;;
            *) break ;;
        esac
        _tlmn_rest=${_tlmn_rest#?}
        _tlmn_host=$_tlmn_host${_tlmn_rest%%[,-]*}
        shift
    done
    unset _tlmn_ifs _tlmn_glob _tlmn_rest
    case $_tlmn_host in *[!0-9A-Za-z._:-]*) _tlmn_host= ;; esac
}
