package metal

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheUseOfAWholeMachineIsReadFromItsKernel(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/stat":                  "cpu  100 20 30 9999 500 10 40 7 0 0\ncpu0 1 2 3\n",
		"proc/meminfo":               "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    600 kB\n",
		"proc/diskstats":             "   8       0 sda 1 0 4 0 1 0 6 0 0 0 0\n   8       1 sda1 1 0 4 0 1 0 6 0 0 0 0\n 253 0 dm-0 1 0 4 0 1 0 6 0 0 0 0\n",
		"sys/block/sda/device/model": "Disk", "sys/block/dm-0/size": "1",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	use, err := useOf(root)
	if err != nil || use.CPUSeconds != 2 || use.MemoryBytes != 400<<10 || *use.DiskReadBytes != 2048 || *use.DiskWrittenBytes != 3072 {
		t.Errorf("got %+v, %v; want 2 s, 400 KiB, and 2048 and 3072 bytes of the one disk", use, err)
	}
}
