package boot

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// withVolume is a cluster of a container and a virtual machine that has a volume.
const withVolume = mixed + `volumes:
- name: data
`

// A container and a virtual machine of one cluster have its volume at one path, with the same owners, get another one while they run, and let go of
// the first.
func TestContainersAndMachinesOfAClusterHaveItsVolumesAtOnePath(t *testing.T) {
	s := newNodes(t, "--nodes", "1", "--node-cores", "2", "--volume-pool-size", "1GiB")
	for _, name := range []string{"data", "more"} {
		s.run("volume", "create", name, "--size", "128MiB")
	}
	file := filepath.Join(t.TempDir(), "mix.yaml")
	must(t, os.WriteFile(file, []byte(withVolume), 0o600))
	s.run("cluster", "create", "-f", file)
	want := func(what, line string, want ...string) {
		t.Helper()
		said := s.saidByRanks("mix", 2, "sh", "-c", line)
		slices.Sort(said)
		if !slices.Equal(said, want) {
			t.Errorf("%s: %q prints %v, want %v", what, line, said, want)
		}
	}
	want("each writes a file", "hostname; hostname >/volumes/data/$(hostname)", "c-0", "v-0")
	want("each reads both", "cat /volumes/data/c-0 /volumes/data/v-0", "c-0", "c-0", "v-0", "v-0")
	want("both see one owner", "cd /volumes/data; stat -c %n:%u:%a *-0", "c-0:1000:644", "c-0:1000:644", "v-0:1000:644", "v-0:1000:644")

	s.run("volume", "attach", "more:/ref:ro", "mix")
	want("a volume that came later is read-only", "test -d /ref/ && grep -q ' /ref ' /proc/self/mounts && ! touch /ref/x 2>/dev/null && echo refused", "refused", "refused")

	s.run("cluster", "ssh", "mix", "v-0", "--", "cd /volumes/data; sleep 1000 >/dev/null 2>&1 </dev/null &")
	s.refused(`files of /volumes/data are still open by "sleep"`, "volume", "detach", "data", "mix", "--timeout", "20s")
	s.run("cluster", "ssh", "mix", "v-0", "--", "pkill", "sleep")
	s.run("volume", "detach", "data", "mix")
	want("both have let go of it", "ls -A /volumes/data; ! grep ' /volumes/data ' /proc/self/mounts && echo gone", "gone", "gone")
	s.run("volume", "delete", "data", "--now", "--yes")
	s.run("cluster", "delete", "mix", "--yes")
}
