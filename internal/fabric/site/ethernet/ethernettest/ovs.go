package ethernettest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// OVS is a real Open vSwitch, in userspace, in a network namespace and a folder of its own.
type OVS struct {
	*Wires
	// Dir is the folder of its files, its socket db.sock among them. Settings have it as the one switch of a fabric.
	Dir      string
	Settings ethernet.Settings
	daemons  map[string]*exec.Cmd
	settled  int
}

const (
	// OpenVLAN and IsolatedVLAN are those of its provisioning ports.
	OpenVLAN     = 300
	IsolatedVLAN = 301
)

// SettingsText are those of a fabric with the ports a, b and c, from machines m1, m2 and m3 boot.
const SettingsText = `
backend: openvswitch
vlans: 2-99
provisioning_vlan: 300
switches:
- name: sw
  address: unix:%s/db.sock
  bridge: br0
  ports: [a, b, c]
  provisioning_ports: [m1, m2, m3]
  isolated_vlan: 301
`

// NewOVS starts a switch whose ports are all trunks of all VLANs, as the switch makes them, but for the server's: so and si are in the provisioning network,
// and in the isolated one.
func NewOVS(t testing.TB) *OVS {
	t.Helper()
	for _, program := range []string{"ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovsdb-tool"} {
		needs.Program(t, program)
	}
	o := &OVS{
		Wires: NewWires(t, "a", "b", "c", "m1", "m2", "m3", "so", "si"), Dir: TempDir(t), daemons: map[string]*exec.Cmd{},
	}
	var err error
	if o.Settings, err = ethernet.Parse(fmt.Appendf(nil, SettingsText, o.Dir), o.Dir); err != nil {
		t.Fatal(err)
	}
	o.Run(fmt.Sprintf("ovsdb-tool create %s/conf.db /usr/share/openvswitch/vswitch.ovsschema 2>&1", o.Dir))
	o.start("ovsdb-server", o.Dir+"/conf.db", "--remote=punix:"+o.Dir+"/db.sock", "--unixctl="+o.Dir+"/db.ctl")
	o.await("db.sock")
	o.VSCtl("--no-wait", "init")
	o.StartSwitch()
	args := []string{"add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"}
	for _, p := range o.Ports {
		args = append(args, "--", "add-port", "br0", p)
		o.Run("ip link set dev " + p + " up")
	}
	o.VSCtl(append(args, "--", "set", "port", "so", fmt.Sprintf("tag=%d", OpenVLAN), "--", "set", "port", "si", fmt.Sprintf("tag=%d", IsolatedVLAN))...)
	return o
}

// StartSwitch starts ovs-vswitchd.
func (o *OVS) StartSwitch() {
	o.t.Helper()
	_ = os.Remove(filepath.Join(o.Dir, "vs.ctl"))
	o.start("ovs-vswitchd", "unix:"+o.Dir+"/db.sock", "--disable-system", "--unixctl="+o.Dir+"/vs.ctl")
	o.await("vs.ctl")
}

// start starts a daemon that ends with the test.
func (o *OVS) start(program string, args ...string) {
	o.t.Helper()
	cmd := exec.Command(program, append(args, "-vconsole:off")...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+o.Dir, "OVS_LOGDIR="+o.Dir, "OVS_DBDIR="+o.Dir)
	if err := o.NS.Do(cmd.Start); err != nil {
		o.t.Fatal(err)
	}
	o.daemons[program] = cmd
	o.t.Cleanup(func() { o.Stop(program) })
}

// Stop ends a daemon, if it runs.
func (o *OVS) Stop(program string) {
	if cmd := o.daemons[program]; cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		delete(o.daemons, program)
	}
}

// await waits until a daemon listens on a socket: it has the name a moment before.
func (o *OVS) await(name string) {
	o.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		if conn, err := net.Dial("unix", filepath.Join(o.Dir, name)); err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("%s did not come up", name)
		}
		o.Run("sleep 0.01")
	}
}

// VSCtl runs ovs-vsctl, which waits until ovs-vswitchd has carried it out.
func (o *OVS) VSCtl(args ...string) string {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), "ovs-vsctl", append([]string{"--timeout=20", "--db=unix:" + o.Dir + "/db.sock"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		o.t.Fatalf("ovs-vsctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// Passed returns when the switch has passed on all frames that it got: its main loop reads the ports and then answers.
func (o *OVS) Passed() {
	o.t.Helper()
	for range 3 {
		if out, err := exec.CommandContext(o.t.Context(), "ovs-appctl", "-t", o.Dir+"/vs.ctl", "version").CombinedOutput(); err != nil {
			o.t.Fatalf("ovs-appctl: %v\n%s", err, out)
		}
	}
}

// Settle waits until ovs-vswitchd has carried out what is in the database.
func (o *OVS) Settle() {
	o.t.Helper()
	o.settled++ // without a change, ovs-vsctl does not wait
	o.VSCtl("set", "open_vswitch", ".", fmt.Sprintf("external_ids:settled=%d", o.settled))
}

// Forwarding waits until the switch forwards by nothing older: it looks at the flows that it has cached after the change of its configuration.
func (o *OVS) Forwarding() {
	o.t.Helper()
	o.Settle()
	if out, err := exec.CommandContext(o.t.Context(), "ovs-appctl", "-t", o.Dir+"/vs.ctl", "revalidator/wait").CombinedOutput(); err != nil {
		o.t.Fatalf("ovs-appctl: %v\n%s", err, out)
	}
}
