package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestUseIsReadFromBothVersionsOfControlGroups(t *testing.T) {
	for name, c := range map[string]struct {
		v2    bool
		files map[string]string
	}{
		"version 2": {true, map[string]string{
			"cpu.stat": "usage_usec 2500000\nuser_usec 1\n", "memory.current": "1000\n", "memory.stat": "anon 1\ninactive_file 400\n",
			"io.stat": "8:0 rbytes=100 wbytes=20 rios=1 wios=1\n8:16 rbytes=1 wbytes=2\n",
		}},
		"version 1": {false, map[string]string{
			"cpuacct.usage": "2500000000\n", "memory.usage_in_bytes": "1000\n", "memory.stat": "inactive_file 1\ntotal_inactive_file 400\n",
			"blkio.throttle.io_service_bytes_recursive": "8:0 Read 100\n8:0 Write 20\n8:16 Read 1\n8:16 Write 2\n8:0 Total 120\nTotal 123\n",
		}},
	} {
		root := t.TempDir()
		groups := &Groups{trees: []hierarchy{{mountPoint: root, v2: c.v2}}, group: "g"}
		if _, err := groups.Use("m"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, without a group: got %v, want fs.ErrNotExist", name, err)
		}
		dir := filepath.Join(root, parentName, "g", "m")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := groups.Use("m")
		if err != nil || got.CPUSeconds != 2.5 || got.MemoryBytes != 600 || got.ReadBytes == nil || *got.ReadBytes != 101 || *got.WrittenBytes != 22 {
			t.Errorf("%s: got %+v, %v; want 2.5 s, 600 bytes, 101 and 22 bytes", name, got, err)
		}
	}
}
