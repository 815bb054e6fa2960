# shellcheck shell=sh
# shellcheck disable=SC2317  # functions are called by their names, which are arguments
# shellcheck disable=SC2015  # `a && b || c`, where c is right when b fails, too
# What runs in a sandbox: POSIX sh, for dash, busybox and bash. It is sent as the text of `sh -c`,
# and what comes from a plan is always an argument or standard input, never a part of this text.
#
#   sh NONCE ACTION BASE REL [ARGUMENT...]
#
# BASE is a folder whose links are followed, since the user named it; REL a path beneath it, whose
# links are refused. What is printed between the two lines that have the NONCE is the answer: a login
# shell may print what it likes before it, and a connection that is cut loses the second line.
#
# A packed write is made whole in a workspace, a hidden folder beside the skill folders, and then
# renamed. Nothing is renamed unless the archive's last member, `end`, arrived:
#
#   new/   what the archive holds for this place     old/   what is being replaced
#   drop/  names in new/ that must not be published  swap/  names of what could not be moved there,
#   end    the marker                                       and is being removed: to be finished
#                                                    gone/  names of what was removed: to be put there
#
# A source archive is unpacked into new/ in the same way, and the marker made when it was whole.
#
# The workspace's name says which process it belongs to, so that the next install here can tell one
# that was killed: it puts back, or finishes, what that one had begun, and removes the rest. Installs
# into one folder publish one after another: who does has the folder .trio-skills-lock there.
nonce=$1 action=$2 base=$3 rel=$4
shift 4
unset CDPATH TAR_OPTIONS
newline='
'

# Where it is noted which source archive a folder was made of: its digest, in a file of that name.
records=./.trio-skills.sources

say() { printf '%s\0%s\0%s\0' "$1" "$2" "$3"; }

# D: nothing can be written there. T: this transfer failed. M: a program is missing.
stop() {
  say "$1" '' "$2"
  end
  cat >/dev/null 2>&1
  exit 0
}

end() { printf '\n%s 0\n' "$nonce"; }

# What is not read of the input is read now: `podman exec` loses the answer of a command that ends
# before that (4.3.1).
finish() {
  end
  while read -r _; do :; done
  exit 0
}

need() {
  for program; do
    command -v "$program" >/dev/null || stop M "$program"
  done
}

is_there() { [ -e "$1" ] || [ -h "$1" ]; }

go_to_base() {
  # shellcheck disable=SC2088  # the one that arrived as an argument
  case $base in
  '~' | '~/'*)
    [ "${HOME-}" ] || stop D 'HOME is not set there'
    base=$HOME${base#?}
    ;;
  esac
  cd -- "$base" 2>/dev/null || return
}

# Go to the folder, making what is missing.
enter() {
  if ! go_to_base; then
    ! is_there "$base" || [ -d "$base" ] || stop D 'a file is in the way'
    reason=$(mkdir -p -- "$base" 2>&1) || stop D "$reason"
    cd -- "$base" 2>/dev/null || stop D "the folder cannot be entered: $base"
  fi
  set -f
  IFS=/
  for part in $rel; do
    [ ! -h "$part" ] || stop D "a link is in the way, and links are not followed: $part"
    if ! cd -- "./$part" 2>/dev/null; then
      # Another install may make it, or swap it, at the same time.
      reason=$(mkdir -- "./$part" 2>&1) || [ -d "$part" ] || reason=$(mkdir -- "./$part" 2>&1) ||
        stop D "$reason"
      cd -- "./$part" 2>/dev/null || stop D "the folder cannot be entered: $part"
    fi
  done
  unset IFS
  set +f
}

# When a process began, in $began: empty where there is none, `-` where that cannot be known.
when_began() {
  if [ ! -r /proc/self/stat ]; then
    began=
    kill -0 "$1" 2>/dev/null && began=-
    return
  fi
  { read -r began <"/proc/$1/stat"; } 2>/dev/null || began=
  began=${began##*) }
  case $began in
  Z* | X*) began= ;; # killed, and nobody has asked for its exit code
  *)
    set -f
    # shellcheck disable=SC2086  # split into fields: this is the 22nd
    set -- $began
    set +f
    began=${20-}
    ;;
  esac
}

know_myself() {
  boot=- host=-
  { read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
  boot=${boot%%-*}
  { read -r host </proc/sys/kernel/hostname; } 2>/dev/null
  # Containers that share a folder may share a name; their first processes began at other times.
  when_began 1
  host=$host+$began
  when_began $$
  workspace=.trio-skills@$host@$boot@$$@$began@$nonce
}

is_old() { [ -e "$1" ] && [ -n "$(find "$1" -prune -mmin "+$2" 2>/dev/null)" ]; }

# Whether the process is gone that a workspace, or the holder of a lock, is named after. Another
# container's cannot be seen: that is believed to be gone after $2 minutes.
is_abandoned() {
  [ ! -h "$1" ] && [ -d "$1" ] || return
  IFS=@
  set -f
  # shellcheck disable=SC2295,SC2086  # split into fields
  set -- "$1" "$2" ${1##*/}
  set +f
  unset IFS
  if [ "$4" != "$host" ]; then
    is_old "$1" "$2"
  elif [ "$5" != "$boot" ]; then
    :
  else
    when_began "$6"
    [ "$began" != "$7" ]
  fi
}

A_DAY=1440

# Remove folders, also those in which their owner has forbidden it. Others may still fill them.
remove() {
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$@" 2>/dev/null && return
    chmod -R u+rwx -- "$@" 2>/dev/null
    rm -rf -- "$@" 2>/dev/null && return
    sleep 0.1 2>/dev/null
  done
  false
}

# Finish or undo what installs had begun that were killed, and remove what they left.
sweep() {
  for abandoned in ./.trio-skills@*@*@*@*@*; do
    is_abandoned "$abandoned" "$A_DAY" || continue
    for found in "$abandoned"/swap/* "$abandoned"/swap/.[!.]* "$abandoned"/swap/..?*; do
      if [ -d "$found" ] && [ -d "$abandoned/new/${found##*/}" ]; then
        remove "./${found##*/}" && mv -f -- "$abandoned/new/${found##*/}" ./
      fi
    done
    for found in "$abandoned"/gone/* "$abandoned"/gone/.[!.]* "$abandoned"/gone/..?*; do
      if [ -d "$found" ] && ! is_there "./${found##*/}"; then
        mv -f -- "$abandoned/new/${found##*/}" ./
      fi
    done
    for found in "$abandoned"/old/* "$abandoned"/old/.[!.]* "$abandoned"/old/..?*; do
      if is_there "$found" && ! is_there "./${found##*/}"; then
        mv -f -- "$found" ./ || continue 2
      fi
    done
    remove "$abandoned"
  done
  for found in ./.trio-skills-*.tar; do # whose, cannot be seen from here
    ! is_old "$found" "$A_DAY" || rm -f -- "$found"
  done
} 2>/dev/null

# The same in folder $1, where single files are written, too.
sweep_below() {
  for left in "./$1"/.trio-skills[@-]*; do
    ! is_there "$left" || (cd -- "./$1" && sweep)
    return 0
  done
}

# Remove from folder $1 what writes of files left that were killed.
sweep_files() {
  for abandoned in "$1"/.trio-skills@*@*@*@*@*; do
    [ -d "$abandoned/old" ] || ! is_abandoned "$abandoned" "$A_DAY" || remove "$abandoned"
  done
}

leave() {
  # At once: were it removed piece by piece, the next one could have it in between.
  # Also where `mv` said that it failed to make it.
  [ ! -d "./.trio-skills-lock/$workspace" ] || mv -f -- ./.trio-skills-lock "$workspace/"
  [ "$keep" ] || remove "./$workspace"
}

# make_workspace PATH...: make it, with these folders in it, and have it removed in the end.
make_workspace() {
  for path; do
    shift
    set -- "$@" "$workspace/$path"
  done
  keep='' locked=''
  trap leave EXIT # before: a disk that is full may have room for a part of it
  trap 'exit 1' HUP INT TERM
  trap '' PIPE
  reason=$(mkdir -- "$workspace" "$@" 2>&1) || stop D "$reason"
}

# Wait until no other install publishes in this folder. Who holds the lock is named in it.
lock() {
  tries=0 failures=0 before=
  # Made now, so that its time tells others how long it has been held.
  reason=$(mkdir -- "$workspace/.trio-skills-lock" "$workspace/.trio-skills-lock/$workspace" 2>&1) ||
    stop T "$reason"
  until reason=$(mv -f -- "$workspace/.trio-skills-lock" ./ 2>&1) ||
    [ -d "./.trio-skills-lock/$workspace" ]; do
    # Nobody had it, time and again: something else is wrong.
    is_there ./.trio-skills-lock || failures=$((failures + 1))
    [ "$failures" -lt 10 ] || stop T "$reason"
    for holder in ./.trio-skills-lock/.trio-skills@*; do
      # By its name, since another may hold it now. Who comes first renames his own onto the rest.
      ! is_abandoned "$holder" 5 || rm -rf -- "$holder"
    done
    [ "$holder" = "$before" ] || tries=0
    before=$holder
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || stop T 'another install is at work in this folder'
    sleep 0.05 2>/dev/null || sleep 1 2>/dev/null
  done
  locked=./.trio-skills-lock
}

# Nothing that was moved by others may be taken for something that was put in its place.
still_mine() {
  [ -d "$locked/$workspace" ] && [ -f "$workspace/end" ] ||
    stop T 'another process has removed what this install was about to publish'
}

# What is mounted beneath this folder, a line each; `?` where that cannot be known.
find_mounts() {
  mounts=
  here=$(pwd -P && echo .) # a newline at its end is a part of it
  here=${here%"$newline".}
  escape "${here%/}"
  here=$escaped
  [ -r /proc/self/mountinfo ] || { mounts='?' && return; }
  while read -r _ _ _ _ point _; do
    case $point in
    "$here"/*) mounts=$mounts${point#"$here"/}$newline ;;
    esac
  done </proc/self/mountinfo
}

# A path as it is written there.
escape() {
  escaped='' path=$1
  while :; do
    case $path in
    *[\\\ \	"$newline"]*) ;;
    *) escaped=$escaped$path && return ;;
    esac
    before=${path%%[\\\ \	"$newline"]*}
    path=${path#"$before"}
    case $path in
    ' '*) escaped=$escaped$before'\040' ;;
    '	'*) escaped=$escaped$before'\011' ;;
    \\*) escaped=$escaped$before'\134' ;;
    *) escaped=$escaped$before'\012' ;;
    esac
    path=${path#?}
  done
}

is_mount() {
  [ "$mounts" ] && [ "$mounts" != '?' ] || return
  escape "$1"
  case $newline$mounts in *"$newline$escaped$newline"*) ;; *) false ;; esac
}

# Whether something is, or may be, mounted there or beneath it.
holds_mount() {
  [ "$mounts" != '?' ] || return 0
  is_mount "$1" && return
  [ "$mounts" ] || return
  escape "$1"
  case $newline$mounts in *"$newline$escaped/"*) ;; *) false ;; esac
}

# Whether it is, or may be, in another file system than this folder.
crosses() {
  [ "$mounts" ] || return 1
  [ "$mounts" != '?' ] || return 0
  set -- "$1"
  until is_mount "$1"; do
    case $1 in
    */*) set -- "${1%/*}" ;;
    *) return 1 ;;
    esac
  done
}

AT_ONCE=200

# Move the files, not the folders, of folder $1 into folder $2.
place_files() {
  from=$1 to=$2
  set --
  for file in "$from"/* "$from"/.[!.]* "$from"/..?*; do
    if [ ! -f "$file" ]; then
      continue
    elif [ -d "./$to/${file##*/}" ] && [ ! -h "./$to/${file##*/}" ]; then
      say F "$to/${file##*/}" 'a folder is in the way'
    else
      set -- "$@" "$file"
    fi
    # Each `set` copies the list, and an argument list must not become too long.
    if [ $# -ge "$AT_ONCE" ]; then
      place_these "$@"
      set --
    fi
  done
  [ $# -eq 0 ] || place_these "$@"
}

place_these() {
  if crosses "$to"; then
    place_copies "$@"
    return
  fi
  move_these "$@"
}

# All at once, since a process for each takes longer; and what this leaves one by one. What counts is
# what is there, whatever `mv` says.
move_these() {
  mv -f -- "$@" "./$to/" 2>/dev/null
  for file; do
    [ -f "$file" ] || continue
    reason=$(mv -f -- "$file" "./$to/" 2>&1)
    [ ! -f "$file" ] || say F "$to/${file##*/}" "$reason"
  done
}

# A file is renamed to its place there, too: copied into a folder beside it first.
place_copies() {
  sweep_files "./$to"
  beside=./$to/$workspace
  if ! reason=$(mkdir -- "$beside" 2>&1); then
    for file; do say F "$to/${file##*/}" "$reason"; done
    return
  fi
  if cp -p -- "$@" "$beside/" 2>/dev/null; then
    for file; do
      shift
      set -- "$@" "$beside/${file##*/}"
    done
  else
    for file; do
      shift
      if reason=$(cp -p -- "$file" "$beside/" 2>&1); then
        set -- "$@" "$beside/${file##*/}"
      else
        say F "$to/${file##*/}" "$reason"
      fi
    done
  fi
  [ $# -eq 0 ] || move_these "$@"
  rm -rf -- "$beside"
}

# Put what is staged in folder $1 into folder $2, which may be there.
merge() {
  if [ -h "./$2" ]; then
    say F "$2" 'a link is in the way, and links are not followed'
    return
  elif is_there "./$2" && [ ! -d "./$2" ]; then
    say F "$2" 'a file is in the way'
    return
  elif [ ! -d "./$2" ] && ! crosses "$2"; then
    parent=./$2
    reason=$(mv -f -- "$1" "${parent%/*}/" 2>&1)
    [ ! -d "$1" ] || say F "$2" "$reason"
    return
  elif [ ! -d "./$2" ] && ! reason=$(mkdir -- "./$2" 2>&1); then
    say F "$2" "$reason"
    return
  fi
  sweep_below "$2"
  place_files "$1" "$2"
  merge_folders "$1" "$2/"
}

merge_folders() {
  for folder in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ ! -d "$folder" ] || merge "$folder" "$2${folder##*/}"
  done
}

# Whether all that is in a folder can be removed.
is_removable() {
  [ -w "$1" ] && [ -x "$1" ] || return
  for below in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ -h "$below" ] || [ ! -d "$below" ] || is_removable "$below" || return
  done
}

# Rename what is called $1 into old/. Where it cannot be renamed, as a folder of an image's layer,
# `mv` would copy it and then remove it file by file: nobody could tell afterwards how far that came.
# So no file may be written here.
move_aside() {
  is_there "./$1" || return 0
  remove "$workspace/old/${1:?}"
  reason=$(
    # shellcheck disable=SC3045  # where there is no -c, a dump is harmless
    ulimit -c 0 2>/dev/null
    ulimit -f 0
    mv -f -- "./$1" "$workspace/old/" 2>&1
  )
  code=$?
  return "$code"
}

# Put the staged folder $1 in place of what is called $2.
swap() {
  if holds_mount "$2"; then
    # Moved aside, it would be emptied with the rest; and a mount point itself cannot be renamed.
    say P "$2" ''
    merge "$1" "$2"
    return
  fi
  # Another install may put its own there in between, whole: then that is the old one.
  for _ in 1 2 3 4 5; do
    move_aside "$2" || break
    reason=$(mv -f -- "$1" ./ 2>&1) && return
    code=0
  done
  if [ "$code" -eq 0 ]; then
    is_there "./$2" || mv -f -- "$workspace/old/$2" ./ || keep=yes
    say F "$2" "$reason"
    return
  fi
  remove "$workspace/old/${2:?}"
  # 153: ended by SIGXFSZ, so it was copying.
  if [ "$code" -ne 153 ] || [ ! -d "./$2" ] || ! is_removable "./$2"; then
    say F "$2" "${reason:-it cannot be moved aside}"
    return
  fi
  reason=$(mkdir -- "$workspace/swap/$2" 2>&1) || { say F "$2" "$reason" && return; }
  reason=$(
    remove "./$2" && mv -f -- "$workspace/swap/$2" "$workspace/gone/" 2>&1 && mv -f -- "$1" ./ 2>&1
  ) && return
  keep=yes
  say F "$2" "$reason"
}

# Put the staged skill folder $1 to where it belongs; it is called $2.
publish() {
  if ! is_there "./$2"; then
    reason=$(mv -f -- "$1" ./ 2>&1)
    [ ! -d "$1" ] || say F "$2" "$reason"
  elif [ "$existing" = error ]; then
    say F "$2" 'the skill folder is there already'
  elif [ "$existing" = replace ]; then
    # What is noted of the folder is not true of the next one.
    [ -h "$records" ] || rm -f -- "$records/$2" 2>/dev/null
    swap "$1" "$2"
  else
    [ "$mounts" = '?' ] || ! holds_mount "$2" || say P "$2" ''
    merge "$1" "$2"
  fi
}

# Rename what is new to its place. It needs no lock: a folder that another install puts there in the
# meantime is not written over, and what is left is looked at under the lock.
publish_new() {
  set --
  for staged in "$workspace"/new/* "$workspace"/new/.[!.]* "$workspace"/new/..?*; do
    [ ! -d "$staged" ] || is_there "./${staged##*/}" || set -- "$@" "$staged"
    if [ $# -ge "$AT_ONCE" ]; then
      mv -f -- "$@" ./ 2>/dev/null
      set --
    fi
  done
  # All at once, since a process for each takes longer; what this leaves is looked at one by one.
  [ $# -eq 0 ] || mv -f -- "$@" ./ 2>/dev/null
}

publish_folders() {
  publish_new
  find_mounts
  for staged in "$workspace"/new/* "$workspace"/new/.[!.]* "$workspace"/new/..?*; do
    [ ! -d "$staged" ] || publish "$staged" "${staged##*/}"
  done
}

publish_files() {
  find_mounts
  place_files "$workspace/new" .
  merge_folders "$workspace/new" ''
}

# Who this is, as `uid gid`, without a program for it.
owner() {
  while read -r key value _; do
    case $key in
    Uid:) uid=$value ;;
    Gid:) echo "$uid $value" ;;
    esac
  done </proc/self/status
}

# unpack_into FOLDER [ARCHIVE]: unpack standard input, or ARCHIVE, into FOLDER of a new workspace.
unpack_into() {
  into=$1 archive=${2-}
  # What the input of a command is that another runtime runs, nobody knows.
  [ -z "$archive" ] || [ "$archive" = - ] || exec </dev/null
  need mkdir mv rm
  [ "$archive" = - ] || need tar
  [ "$format" != gzip ] || need gzip
  enter
  know_myself
  make_workspace new old swap gone
  [ "$into" = . ] || reason=$(mkdir -- "$workspace/$into" 2>&1) || stop D "$reason"
  if [ "$archive" = - ]; then
    # Others unpack it there, and say so.
    say W "$(pwd -P)/$workspace/$into" "$(owner)"
    read -r _ || exit 1
    return
  elif [ "$archive" ]; then
    reason=$(mv -f -- "./$archive" "$workspace/archive" 2>&1)
    [ -f "$workspace/archive" ] || stop T "the archive cannot be moved: ${reason:-no reason was given}"
    exec <"$workspace/archive"
  fi
  reason=$(unpack 2>&1) || stop T "tar failed: ${reason:-no reason was given}"
}

# GNU tar takes escapes in the argument of -C for what they stand for, so `cd` goes there.
unpack() {
  case $format in
  # It checks what it unpacks, so it knows whether it has the whole.
  gzip) { gzip -dc && : >"$workspace/end"; } | (cd -- "./$workspace/$into" && tar -x -o -f -) ;;
  tar) (cd -- "./$workspace/$into" && tar -x -o -f -) ;;
  # Skills are as old as their being put there, by the sandbox's own clock.
  *) (cd -- "./$workspace/$into" && tar -x -o -m -f -) ;;
  esac
}

is_whole() { [ -f "$workspace/end" ] || stop T 'the transfer was cut off'; }

# write_many EXISTING folders|files [ARCHIVE]: standard input, or ARCHIVE, is a tar archive.
write_many() {
  existing=$1 kind=$2 format=
  unpack_into . "${3-}"
  is_whole
  commit
}

# write_source NAME gzip|tar DIGEST [ARCHIVE]: the archive is what belongs into the folder NAME. A tar
# has one member more, which is called as the NONCE is, to show that all of it arrived.
write_source() {
  name=$1 format=$2 digest=$3 existing=replace
  unpack_into "new/$name" "${4-}"
  [ "$format" = gzip ] || mv -f -- "$workspace/new/$name/$nonce" "$workspace/end" 2>/dev/null
  is_whole
  trap '' HUP INT TERM
  lock
  sweep
  publish_source
  still_mine
}

# The note goes first and comes last: what is noted is there.
publish_source() {
  find_mounts
  if is_there "./$name" && holds_mount "$name"; then
    say F "$name" 'a file system is, or may be, mounted there, so it cannot be replaced; remove it first'
    return
  elif [ -h "$records" ]; then
    say F "$records" 'a link is in the way, and links are not followed'
    return
  fi
  reason=$({ mkdir -p -- "$records" && rm -f -- "$records/$name"; } 2>&1) || {
    say F "$name" "$reason"
    return
  }
  publish "$workspace/new/$name" "$name"
  [ ! -d "$workspace/new/$name" ] || return 0 # and it was said why
  reason=$({ echo "$digest" >"$workspace/digest" &&
    mv -f -- "$workspace/digest" "$records/$name"; } 2>&1) || say F "$name" "$reason"
}

# Whether nothing of another install is in this folder, be it at work or killed.
is_alone() {
  for other in ./.trio-skills[@-]*; do
    [ "$other" = "./$workspace" ] || ! is_there "$other" || return
  done
}

is_all_published() {
  for staged in "$workspace"/new/* "$workspace"/new/.[!.]* "$workspace"/new/..?*; do
    ! is_there "$staged" || return
  done
  [ -f "$workspace/end" ]
}

commit() {
  trap '' HUP INT TERM
  for dropped in "$workspace"/drop/* "$workspace"/drop/.[!.]* "$workspace"/drop/..?*; do
    [ ! -f "$dropped" ] || rm -rf -- "$workspace/new/${dropped##*/}"
  done
  if [ "$kind" = folders ] && is_alone; then
    publish_new
    is_all_published && return
  fi
  lock
  sweep
  "publish_$kind"
  still_mine
}

# write NAME LENGTH: standard input is the file.
write() {
  name=$1 length=$2
  need cat mkdir mv rm wc
  enter
  [ -h "./$name" ] || [ ! -d "./$name" ] || stop D 'a folder is in the way'
  know_myself
  sweep_files .
  make_workspace
  reason=$({ cat >"$workspace/$name"; } 2>&1) || stop T "$reason"
  arrived=$(($(wc -c <"$workspace/$name")))
  [ "$arrived" -eq "$length" ] || stop T "cut off: $arrived of $length bytes arrived"
  reason=$(mv -f -- "$workspace/$name" ./ 2>&1)
  [ ! -f "$workspace/$name" ] || stop T "$reason"
}

# for_each COMMAND: run it with the paths that standard input lists, a hundred at a time. A line is a
# path with octal escapes, and an empty line ends the list.
for_each() {
  more=yes
  while [ "$more" ]; do
    set -- "$1"
    while [ $# -le 100 ]; do
      IFS= read -r path || exit 1 # cut off
      [ "$path" ] || { more= && break; }
      case $path in
      *\\*) path=$(printf '%b.' "$path") && path=${path%.} ;;
      esac
      set -- "$@" "$path"
    done
    [ $# -eq 1 ] || "$@"
  done
}

# Go to the folder without making it, and remember in $absent where that is not possible.
look_from_base() {
  absent=
  go_to_base && return
  if ! is_there "$base"; then
    absent=yes
  else # perhaps only now: another install may have made it
    go_to_base || stop T "the folder cannot be entered: $base"
  fi
}

# Where nothing can be executed, `[ -x` tells nothing of a file's mode.
find_noexec() {
  noexec='' here=$(pwd -P)
  [ -r /proc/self/mountinfo ] || return 0
  while read -r _ _ _ _ point options _; do
    case $point,$options, in
    /proc* | /sys* | /dev*) ;;
    *,noexec,*) noexec=$noexec$point$newline ;;
    esac
  done </proc/self/mountinfo
}

is_executable() {
  [ ! -x "$1" ] || return 0
  full=$1
  [ "${1#/}" != "$1" ] || full=${here%/}/${1#./}
  IFS=$newline
  for point in $noexec; do
    case $full in "${point%/}"/*) break ;; *) point= ;; esac
  done
  unset IFS
  [ "${noexec:+$point}" ] && [ -n "$(find "$1" -prune -perm -100 2>/dev/null)" ]
}

# A letter for each path, then `sha256sum` once for all files: a process for each would take long.
# `for` walks the list as it was, while the body makes a new one of the files alone.
inspect() {
  for path; do
    shift
    if [ "$absent" ] && [ "${path#/}" = "$path" ]; then
      printf m
    elif [ -h "$path" ]; then
      printf o
    elif [ -f "$path" ]; then
      if is_executable "$path"; then printf x; else printf f; fi
      set -- "$@" "$path"
    elif [ -d "$path" ]; then
      if [ -w "$path" ]; then printf d; else printf r; fi
    elif [ -b "$path" ] || [ -c "$path" ] || [ -p "$path" ] || [ -S "$path" ]; then
      printf o # and not whatever exists: that may be a file that was put there since
    else
      printf m
    fi
  done
  echo
  [ $# -eq 0 ] || sha256sum -- "$@"
}

make_executable() {
  [ -z "$absent" ] || for path; do
    [ "${path#/}" != "$path" ] || stop T "the folder is not there: $base"
  done
  reason=$(chmod +x -- "$@" 2>&1) || stop T "$reason"
}

printf '%s\n' "$nonce"
LC_ALL=C
export LC_ALL
case $action in
inspect)
  need sha256sum
  look_from_base
  find_noexec
  for_each inspect
  ;;
make_executable)
  need chmod
  look_from_base
  for_each make_executable
  ;;
hold)
  # The connection's own session: it shows that arguments arrive as they are, and then `finish`
  # waits for the end of its input.
  printf '%s' "$1"
  ;;
greet) IFS= read -r line && printf '%s' "$line" ;;
*) "$action" "$@" ;;
esac
finish
