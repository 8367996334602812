package boot

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// inBand are the commands by which root of a machine reaches its BMC, without a password.
const inBand = "modprobe ipmi_si && modprobe ipmi_devintf && LD_LIBRARY_PATH=/opt/ipmi /opt/ipmi/ipmitool -I open "

// giveIPMITool copies ipmitool to a member, which has none: with its libraries, as a tenant would build it.
func (s *site) giveIPMITool(cluster, member string) {
	s.t.Helper()
	program := needs.Program(s.t, "ipmitool")
	archive, err := exec.Command("sh", "-c", "d=$(mktemp -d) && cp "+program+" $(ldd "+program+" | awk '$3 ~ /^\\// {print $3}') $d && "+
		"rm -f $d/libc.so* $d/ld-linux* && tar cf - -C $d . && rm -r $d").Output()
	must(s.t, err)
	put := s.command("cluster", "ssh", cluster, member, "--root", "--", "mkdir -p /opt/ipmi && tar xf - -C /opt/ipmi")
	put.Stdin = bytes.NewReader(archive)
	if out, err := put.CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

// byNetwork runs ipmitool against a machine's BMC over the network.
func (s *site) byNetwork(m vdc.Machine, user, password string, args ...string) (string, error) {
	s.t.Helper()
	host, _, _ := strings.Cut(m.IPMI, ":")
	out, err := exec.Command("ipmitool", append([]string{"-I", "lanplus", "-C", "3", "-R", "2", "-N", "2", "-H", host, "-U", user, "-P", password}, args...)...).CombinedOutput()
	return string(out), err
}

// Two machines have tenants. One BMC's host interface can be closed, and its tenant's root gets nowhere. The other's can't: its tenant adds a user of its own,
// which is noticed, and gone once the machine is free again. The site's password is another one then.
func TestATenantDoesNotKeepTheBMCOfItsMachine(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, HostInterface: vdc.HostClosable},
		{Name: "b2", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, HostInterface: vdc.HostFixed},
	})
	s.enrollInspected("b1", api.PowerIPMI)
	s.enrollInspected("b2", api.PowerIPMI)
	s.awaitInspected("b1", "b2")
	began := time.Now()
	s.run("cluster", "create", "m1", "--stack", "metal", "--size", "2", "--env", "debian-mpi")
	t.Logf("measured: the cluster was ready after %.0f s", time.Since(began).Seconds())
	members := map[string]string{}
	for _, m := range s.cluster("m1").Status.Members {
		members[m.Node] = m.Name
		s.giveIPMITool("m1", m.Name)
	}
	if host := s.record("b1").BMC.Host; host != api.HostClosed {
		t.Errorf("the host interface of b1 is %q", host)
	}
	if host := s.record("b2").BMC.Host; host != api.HostFixed {
		t.Errorf("the host interface of b2 is %q", host)
	}
	open := s.run("cluster", "ssh", "m1", members["b2"], "--root", "--", inBand+"user list 1")
	if !strings.Contains(open, s.machine("b2").User) {
		t.Errorf("where the host interface is open, root reads %q: the test is no proof", open)
	}
	if out, err := s.try("cluster", "ssh", "m1", members["b1"], "--root", "--", inBand+"user list 1"); err == nil {
		t.Errorf("where it is closed, root reads %q", out)
	}
	out, err := s.try("cluster", "ssh", "m1", members["b1"], "--root", "--", inBand+"raw 6 1")
	t.Logf("where it is closed, root gets %q, %v", out, err)

	const evil, password = "evil", "evilpassword"
	s.run("cluster", "ssh", "m1", members["b2"], "--root", "--",
		"ipmi() { LD_LIBRARY_PATH=/opt/ipmi /opt/ipmi/ipmitool -I open \"$@\"; }; ipmi user set name 3 "+evil+" && ipmi user set password 3 "+password+
			" && ipmi channel setaccess 1 3 ipmi=on link=on privilege=4 && ipmi user enable 3")
	if out, err := s.byNetwork(s.machine("b2"), evil, password, "chassis", "power", "status"); err != nil {
		t.Errorf("the tenant's user does not get in over the network: %v: %s; the test is no proof", err, out)
	}
	s.until(3*time.Minute, "the tenant's user to be noticed", func() bool { return strings.Contains(s.record("b2").BMC.Drift, evil) })
	if drift := s.record("b1").BMC.Drift; drift != "" {
		t.Errorf("on b1 nothing was changed, and %q is noticed", drift)
	}
	if !slices.ContainsFunc(read[[]api.Event](s, "node", "events", "b2"), func(e api.Event) bool {
		return e.Reason == "MachineBMCChanged" && strings.Contains(e.Message, evil)
	}) {
		t.Error("no event of b2 names the tenant's user")
	}

	s.run("cluster", "delete", "m1", "--yes")
	for _, name := range []string{"b1", "b2"} {
		n := s.waitUntil(name, "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil })
		s.wantPower(name, api.PowerOff)
		bmc := n.Machine.Record.BMC
		if bmc.RotatedAt == nil || bmc.Drift != "" {
			t.Errorf("the BMC of %s: changed its password at %v, differs by %q", name, bmc.RotatedAt, bmc.Drift)
		}
		m := s.machine(name)
		if out, err := s.byNetwork(m, m.User, m.Password, "chassis", "power", "status"); err == nil {
			t.Errorf("the BMC of %s still takes the former password: %s", name, out)
		}
		login := read[api.BMCLogin](s, "node", "bmc-password", name)
		if out, err := s.byNetwork(m, login.User, login.Password, "chassis", "power", "status"); err != nil || !strings.Contains(out, "off") {
			t.Errorf("the password that is printed for %s: %v: %s", name, err, out)
		}
	}
	if out, err := s.byNetwork(s.machine("b2"), evil, password, "chassis", "power", "status"); err == nil {
		t.Errorf("the tenant's user still gets in: %s", out)
	}
}
