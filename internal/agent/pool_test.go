package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/config"
)

func TestVolumesInFilesAreNotHiddenByAThinPool(t *testing.T) {
	thin := config.Agent{VolumeGroup: "vg0", VolumeThinPool: "volumes"}
	for _, c := range []struct {
		name, file string
		refused    bool
	}{
		{"nothing there", "", false},
		{"a pool in a file", "volumes/pool.img", true},
		{"images in files", "volumes/images/u1/volume", true},
		{"records alone", "volumes/records/u1", false},
	} {
		dir := t.TempDir()
		if c.file != "" {
			path := filepath.Join(dir, c.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p, err := openPool(thin, dir, "")
		if c.refused != (err != nil) || c.refused != (p == nil) || c.refused && !strings.Contains(err.Error(), "holds volumes in files") {
			t.Errorf("%s: %v, %v", c.name, p, err)
		}
	}
}

func TestNoVolumesAreKeptInMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		opts config.Agent
		kept bool
	}{
		"a host":                           {config.Agent{VolumePoolBytes: 64 << 20}, true},
		"no volumes":                       {config.Agent{VolumePoolBytes: 64 << 20, NoVolumes: true}, false},
		"a root in memory":                 {config.Agent{VolumePoolBytes: 64 << 20, InRAM: true}, false},
		"a machine that its server booted": {config.Agent{VolumePoolBytes: 64 << 20, BootGeneration: 3}, false},
	} {
		if pool, err := openPool(tt.opts, t.TempDir(), ""); err != nil || (pool != nil) != tt.kept {
			t.Errorf("%s: a pool: %v, want %v (%v)", name, pool != nil, tt.kept, err)
		}
	}
}
