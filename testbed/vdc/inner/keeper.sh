# The life of a virtual data centre: everything inside ends, and its files go, once the starter closes standard input or dies.
# $1 is the data centre's folder. Descriptor 3 holds its lock until all of that has happened.
trap '' INT TERM HUP
setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child sh "$1/inside.sh" "$1" >"$1/log/inside.log" 2>&1 3>&- &
child=$!
read -r _ || :
# The first process of the PID namespace takes all others with it, and unshare waits until they are gone.
init=$(cat "$1/init.pid" 2>/dev/null) && kill -KILL "$init" 2>/dev/null || kill -KILL "$child"
wait "$child"
rm -rf "$1"
