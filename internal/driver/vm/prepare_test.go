package vm_test

import (
	"strings"
	"testing"
)

// A machine with a kernel and modules of its own is where modules and settings can be changed for real.
func TestAMachineIsPreparedAsShownAndOnce(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	const device = "/dev/vhost-vsock"
	if got := r.tell(t, m.Assignment.ID, order{Shell: "stat -c %t:%T /dev/net/tun && rm " + device}).Text; got != "a:c8\n" {
		t.Errorf("/dev/net/tun, whose opening loads a module, has the number %q", got)
	}
	t.Log("without " + device + ", which would load its module when opened, the module has to be loaded")
	text := r.tell(t, m.Assignment.ID, order{Prepare: true}).Text
	first, second, _ := strings.Cut(text, "--\n")
	if second != "--\n" {
		t.Errorf("a second preparation changes:\n%s", second)
	}
	var planned, did []string
	for _, part := range strings.Split("\n"+first, "\nplanned ")[1:] {
		change, rest, _ := strings.Cut(part, "\ndid ")
		planned = append(planned, strings.TrimSpace(change))
		for rest != "" {
			change, rest, _ = strings.Cut(rest, "\ndid ")
			did = append(did, strings.TrimSpace(change))
		}
	}
	if len(planned) == 0 || strings.Join(planned, "\n") != strings.Join(did, "\n") {
		t.Errorf("planned %q, did %q", planned, did)
	}
	for _, want := range []string{"modprobe vhost_vsock", "sysctl -w vm.nr_hugepages=4", "/etc/modules-load.d/nearmetal.conf", "/etc/sysctl.d/60-nearmetal.conf"} {
		if !strings.Contains(first, want) {
			t.Errorf("the preparation lacks %q:\n%s", want, first)
		}
	}
	if pages := r.tell(t, m.Assignment.ID, order{Read: "/proc/sys/vm/nr_hugepages"}).Text; pages != "4\n" {
		t.Errorf("the machine has %q huge pages", pages)
	}
	if loaded := r.tell(t, m.Assignment.ID, order{Read: "/proc/modules"}).Text; !strings.Contains(loaded, "vhost_vsock ") {
		t.Errorf("the machine has loaded:\n%s", loaded)
	}
}
