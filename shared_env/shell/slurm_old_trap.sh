# shellcheck shell=bash disable=SC2154
# An EXIT trap that setup made comes first. (A plain sh cannot show it: there it stays alone, and our files too.)
if _tlmn_old=$(trap -p EXIT 2> /dev/null); then
    if [ -n "$_tlmn_old" ]; then
        _tlmn_old=${_tlmn_old#"trap -- "}
        eval "_tlmn_old=${_tlmn_old%" EXIT"}"
        _tlmn_clean="$_tlmn_old
$_tlmn_clean"
    fi
elif [ -n "$(trap)" ]; then
    _tlmn_clean=
fi
unset _tlmn_old
