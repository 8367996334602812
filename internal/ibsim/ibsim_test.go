package ibsim

import (
	"os"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func start(t *testing.T, topology Topology) *Fabric {
	t.Helper()
	for _, program := range []string{"ibsim", "opensm", "ibnetdiscover"} {
		needs.Program(t, program)
	}
	f, err := Start(t.Context(), t.TempDir(), topology)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(f.Dir()); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", f.Dir(), err)
		}
	})
	return f
}

func TestAFabricHasItsHostsAndASubnetManager(t *testing.T) {
	f := start(t, OneSwitch(3))
	m, err := f.Manage(t.Context(), "n1", 5, "")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Stop()
	out, err := f.Command(t.Context(), "n2", "sminfo").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "sm guid 0x"+strings.TrimLeft(f.Hosts[0].PortGUID(), "0")) || !strings.Contains(string(out), "priority 5 state 3 SMINFO_MASTER") {
		t.Errorf("sminfo: %v, %s", err, out)
	}
	if err := f.Unlink(t.Context(), "n3"); err != nil {
		t.Fatal(err)
	}
	if err := f.Unlink(t.Context(), "n4"); err == nil {
		t.Error("the cable of a host that there is not was pulled")
	}
	out, err = f.Command(t.Context(), "n2", "ibnetdiscover").Output()
	if err != nil || !strings.Contains(string(out), `"n2"`) || strings.Contains(string(out), `"n3"`) {
		t.Errorf("ibnetdiscover: %v, %s", err, out)
	}
}

func TestFabricsDoNotSeeEachOther(t *testing.T) {
	two, three := start(t, OneSwitch(2)), start(t, FatTree(3))
	for f, hosts := range map[*Fabric]int{two: 2, three: 3} {
		out, err := f.Command(t.Context(), "n1", "ibnetdiscover").Output()
		if got := strings.Count(string(out), "\nCa\t"); err != nil || got != hosts {
			t.Errorf("%d hosts are seen, want %d: %v, %s", got, hosts, err, out)
		}
	}
}

func TestTheLargestFatTreeHasAllItsHostsOnce(t *testing.T) {
	f := start(t, FatTree(MostHosts))
	out, err := f.Command(t.Context(), "n1", "ibnetdiscover").Output()
	if hosts, switches := strings.Count(string(out), "\nCa\t"), strings.Count(string(out), "\nSwitch\t"); err != nil || hosts != MostHosts || switches != 54 {
		t.Errorf("%d hosts and %d switches are seen, want %d and 54: %v", hosts, switches, MostHosts, err)
	}
}
