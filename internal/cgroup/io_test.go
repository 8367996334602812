package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// ioTree is a control group tree of plain files, with one member's group and its files in it. What is written stays as it was written.
func ioTree(t *testing.T, v2 bool, files map[string]string) (*Groups, string) {
	t.Helper()
	c, dir := freezerTree(t, v2, files)
	if !v2 {
		c.trees[0].controllers = []string{"blkio"}
	}
	return c, dir
}

func TestRatesAreReadAsEachVersionWritesThem(t *testing.T) {
	for what, c := range map[string]struct {
		text string
		n    int
		v2   bool
		want rates
	}{
		"version 1":               {"7:0 1048576\n254:16 5\n", 0, false, rates{"7:0": 1 << 20, "254:16": 5}},
		"version 2, reads":        {"7:0 rbps=1048576 wbps=7 riops=max wiops=max\n", 0, true, rates{"7:0": 1 << 20}},
		"version 2, writes":       {"7:0 rbps=1048576 wbps=7 riops=max wiops=max\n", 1, true, rates{"7:0": 7}},
		"version 2, reads only":   {"7:0 rbps=1048576 wbps=max riops=max wiops=max\n", 1, true, rates{}},
		"version 2, another kind": {"7:0 riops=3\n", 1, true, rates{}},
		"nothing":                 {"", 0, false, rates{}},
	} {
		if got, err := parseRates(c.text, c.n, c.v2); err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v (%v), want %v", what, got, err, c.want)
		}
	}
	if _, err := parseRates("7:0 much\n", 0, false); err == nil || !strings.Contains(err.Error(), "7:0 much") {
		t.Errorf("of text that is no rate: %v", err)
	}
}

func TestALimitCountsOnceTheKernelReportsIt(t *testing.T) {
	dir := t.TempDir()
	device, err := deviceOf(dir)
	if err != nil {
		needs.Hardware(t, "temporary files are on no disk: %v", err)
	}
	limit := []IOLimit{{Dir: dir, BytesPerSecond: 1 << 20}}
	for what, c := range map[string]struct {
		v2     bool
		files  map[string]string
		limits []IOLimit
		want   string // of the error; "" for none
	}{
		// The files take what is written, so that version 1 reports a limit by its own words.
		"version 1":                          {false, map[string]string{"blkio.throttle.read_bps_device": "", "blkio.throttle.write_bps_device": ""}, limit, ""},
		"version 1, already so":              {false, map[string]string{"blkio.throttle.read_bps_device": device + " 1048576\n", "blkio.throttle.write_bps_device": device + " 1048576\n"}, limit, ""},
		"a limit of a device that stays":     {false, map[string]string{"blkio.throttle.read_bps_device": "7:99 5\n", "blkio.throttle.write_bps_device": "7:99 5\n"}, nil, "the kernel reports the rates map[7:99:0]"},
		"version 2, of reads but not writes": {true, map[string]string{"io.max": ""}, limit, "the kernel reports the rates map[]"},
		"version 2, no limit, and none":      {true, map[string]string{"io.max": ""}, nil, ""},
		"version 2, no throttling, no limit": {true, nil, nil, ""},
		"no throttling":                      {false, nil, limit, "CONFIG_BLK_DEV_THROTTLING"},
	} {
		groups, at := ioTree(t, c.v2, c.files)
		err := groups.LimitIO("m", c.limits)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
		if c.want == "" && len(c.limits) > 0 {
			for _, name := range throttlesV1 {
				if text, _ := os.ReadFile(filepath.Join(at, name)); strings.TrimSpace(string(text)) != device+" 1048576" {
					t.Errorf("%s: %s has %q", what, name, text)
				}
			}
		}
	}
}

func TestAMemberWithoutItsGroupCantBeLimited(t *testing.T) {
	c, dir := ioTree(t, false, nil)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := c.LimitIO("m", nil); err != nil {
		t.Errorf("lifting what is not there: %v", err)
	}
	temporary := t.TempDir()
	if _, err := deviceOf(temporary); err != nil {
		needs.Hardware(t, "temporary files are on no disk: %v", err)
	}
	if err := c.LimitIO("m", []IOLimit{{Dir: temporary, BytesPerSecond: 1 << 20}}); err == nil || !strings.Contains(err.Error(), "restart the member") {
		t.Errorf("got %v, want what to do", err)
	}
}

func TestAHostSaysWhatItsLimitsOfIODoNotBound(t *testing.T) {
	for what, c := range map[string]struct {
		tree  hierarchy
		has   string // cgroup.controllers
		want  string // "" for nothing
		fails bool   // limits can't be set at all
	}{
		"version 2":               {hierarchy{v2: true}, "cpu io memory", "", false},
		"version 2 without io":    {hierarchy{v2: true}, "cpu memory", "CONFIG_BLK_CGROUP", false},
		"version 1":               {hierarchy{controllers: []string{"blkio"}}, "", "writes that the kernel buffers", false},
		"version 1 without blkio": {hierarchy{controllers: []string{"memory"}}, "", "mount -t cgroup -o blkio none", true},
	} {
		c.tree.mountPoint = t.TempDir()
		if err := os.WriteFile(filepath.Join(c.tree.mountPoint, "cgroup.controllers"), []byte(c.has), 0o600); err != nil {
			t.Fatal(err)
		}
		g := &Groups{group: "n1", trees: []hierarchy{c.tree}}
		if got := g.UnlimitedIO(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
		if err := g.LimitIO("m", nil); err != nil {
			t.Errorf("%s, without limits: %v", what, err)
		}
		if !c.fails {
			continue
		}
		if err := g.LimitIO("m", []IOLimit{{Dir: "/", BytesPerSecond: 1 << 20}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: a limit was set: %v", what, err)
		}
	}
}

func TestAFileSystemWithoutABlockDeviceHasNoLimit(t *testing.T) {
	if _, err := deviceOf("/proc"); err == nil || !strings.Contains(err.Error(), "has no block device of its own") {
		t.Errorf("got %v", err)
	}
	got, err := devices([]IOLimit{{Dir: "/proc", BytesPerSecond: 1}, {Dir: "/nothing", BytesPerSecond: 1}})
	if len(got) != 0 || err == nil || !strings.Contains(err.Error(), "/proc") || !strings.Contains(err.Error(), "/nothing") {
		t.Errorf("got %v, %v, want both named", got, err)
	}
}
