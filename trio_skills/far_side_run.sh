# shellcheck shell=sh
# Runs a command in a sandbox: POSIX sh, sent and called as `far_side.sh` is.
#
#   sh NONCE BASE NUMBER [NAME=VALUE...] PROGRAM [ARGUMENT...]
#
# Its own variables have names that nobody uses: those of the environment are the command's. Standard
# input stays open as long as the client lives; when it ends, whatever was started here is killed.
_ts_nonce=$1 _ts_base=$2 _ts_count=$3
shift 3
unset CDPATH

_ts_end() {
  printf '\n%s %s\n' "$_ts_nonce" "$1"
  exit 0
}

# Whether its process group is this shell with what it starts, and nobody else.
_ts_leads_its_group() {
  { read -r _ts_stat <"/proc/$$/stat"; } 2>/dev/null || return 1
  # shellcheck disable=SC2086  # split into fields
  set -- ${_ts_stat##*) }
  [ "$3" = $$ ]
}

_ts_kill_when_the_client_ends() {
  while read -r _; do :; done
  for _ts_victim; do
    kill -9 "$_ts_victim"
  done
}

printf '%s\n' "$_ts_nonce"
printf '%s\n' "$_ts_nonce" >&2
# shellcheck disable=SC2088  # the one that arrived as an argument
case $_ts_base in
'~' | '~/'*)
  [ "${HOME-}" ] || { echo 'HOME is not set' >&2 && _ts_end 126; }
  _ts_base=$HOME${_ts_base#?}
  ;;
esac
cd -- "$_ts_base" 2>/dev/null || { mkdir -p -- "$_ts_base" && cd -- "$_ts_base"; } || _ts_end 126
if [ "$_ts_count" -gt 0 ] && command -v env >/dev/null; then
  set -- env "$@"
  _ts_count=0
fi
# shellcheck disable=SC2163  # a name with its value, where there is no `env`
_ts_exec() {
  while [ "$_ts_count" -gt 0 ]; do
    export "$1"
    shift
    _ts_count=$((_ts_count - 1))
  done
  exec "$@"
}
exec 3<&0 </dev/null
if _ts_leads_its_group; then
  (exec <&3 3<&- >/dev/null 2>&1 && _ts_kill_when_the_client_ends 0) &
  _ts_watcher=$!
  exec 3<&-
  (_ts_exec "$@")
  _ts_code=$?
else
  [ "$_ts_count" -gt 0 ] || ! command -v setsid >/dev/null || set -- setsid "$@"
  (_ts_exec "$@") 3<&- &
  _ts_command=$!
  # Both: it may not have made its group yet.
  (exec <&3 3<&- >/dev/null 2>&1 && _ts_kill_when_the_client_ends "$_ts_command" "-$_ts_command") &
  _ts_watcher=$!
  exec 3<&-
  wait "$_ts_command"
  _ts_code=$?
fi
kill -9 "$_ts_watcher" 2>/dev/null
_ts_end "$_ts_code"
