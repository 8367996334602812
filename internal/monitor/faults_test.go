package monitor

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestReportedErrorsAreBoundedAndEndWithTheStream(t *testing.T) {
	m, _ := clocked(t)
	s := connected(t, m, "first")
	m.takeFaults("n1", s, api.HardwareFaults{
		Boot: "b", Memory: make([]api.MemoryFaults, 1000), Disks: []api.DiskFaults{{Name: "sda\x1b[2J", Failing: strings.Repeat("x", 1<<16), MediaErrors: -5}},
	})
	got, heard := m.Faults("n1")
	if !heard || len(got.Memory) != maxControllers || len(got.Disks) != 1 {
		t.Fatalf("got %d controllers and %d disks (%v)", len(got.Memory), len(got.Disks), heard)
	}
	if d := got.Disks[0]; strings.Contains(d.Name, "\x1b") || len(d.Failing) > 1<<12 || d.MediaErrors != 0 {
		t.Errorf("a disk is %q with %d bytes and %d errors", d.Name, len(d.Failing), d.MediaErrors)
	}
	m.disconnect("n1", s)
	if _, heard := m.Faults("n1"); heard {
		t.Error("a node that is not connected still says something")
	}
}
