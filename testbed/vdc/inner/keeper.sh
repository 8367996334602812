# The life of a virtual data centre: everything inside ends, and its files go, once the starter closes standard input or dies.
# $1 is the data centre's folder, the arguments after it are the inner ends of its cables. Descriptor 3 holds its lock until all of that
# has happened.
dir=$1
shift
trap '' INT TERM HUP
setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child sh "$dir/inside.sh" "$dir" >"$dir/log/inside.log" 2>&1 3>&- &
child=$!
read -r _ || :
# The first process of the PID namespace takes all others with it, and unshare waits until they are gone.
init=$(cat "$dir/init.pid" 2>/dev/null) && kill -KILL "$init" 2>/dev/null || kill -KILL "$child"
wait "$child"
# The kernel would remove the cables with the namespace, but at its leisure.
for cable; do
	ip link delete "$cable" 2>/dev/null || :
done
rm -rf "$dir" "$dir.lock"
rmdir "$(dirname "$dir")" 2>/dev/null || :
