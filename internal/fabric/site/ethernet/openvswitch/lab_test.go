package openvswitch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet/ethernettest"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// ovs is a real Open vSwitch, in userspace, in a network namespace and a folder of its own.
type ovs struct {
	*ethernettest.Wires
	t        testing.TB
	dir      string
	settings ethernet.Settings
	// stuck are VLANs that somebody puts on ports again and again.
	stuck   map[string]string
	daemons map[string]*exec.Cmd
}

const (
	openVLAN     = 300
	isolatedVLAN = 301
)

// settingsOf are those of a fabric with the ports a, b and c, from machines m1, m2 and m3 boot.
const settingsOf = `
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

// newOVS starts a switch whose ports are all trunks of all VLANs, as the switch makes them, but for the server's: so and si are in the provisioning network,
// and in the isolated one.
func newOVS(t testing.TB) *ovs {
	t.Helper()
	for _, program := range []string{"ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovsdb-tool"} {
		needs.Program(t, program)
	}
	o := &ovs{
		Wires: ethernettest.NewWires(t, "a", "b", "c", "m1", "m2", "m3", "so", "si"), t: t, dir: ethernettest.TempDir(t), stuck: map[string]string{},
		daemons: map[string]*exec.Cmd{},
	}
	var err error
	if o.settings, err = ethernet.Parse(fmt.Appendf(nil, settingsOf, o.dir), o.dir); err != nil {
		t.Fatal(err)
	}
	o.Run(fmt.Sprintf("ovsdb-tool create %s/conf.db /usr/share/openvswitch/vswitch.ovsschema 2>&1", o.dir))
	o.start("ovsdb-server", o.dir+"/conf.db", "--remote=punix:"+o.dir+"/db.sock", "--unixctl="+o.dir+"/db.ctl")
	o.wait("db.sock")
	o.vsctl("--no-wait", "init")
	o.startSwitch()
	args := []string{"add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"}
	for _, p := range o.Ports {
		args = append(args, "--", "add-port", "br0", p)
		o.Run("ip link set dev " + p + " up")
	}
	o.vsctl(append(args, "--", "set", "port", "so", fmt.Sprintf("tag=%d", openVLAN), "--", "set", "port", "si", fmt.Sprintf("tag=%d", isolatedVLAN))...)
	return o
}

func (o *ovs) startSwitch() {
	o.t.Helper()
	_ = os.Remove(filepath.Join(o.dir, "vs.ctl"))
	o.start("ovs-vswitchd", "unix:"+o.dir+"/db.sock", "--disable-system", "--unixctl="+o.dir+"/vs.ctl")
	o.wait("vs.ctl")
}

// start starts a daemon that ends with the test.
func (o *ovs) start(program string, args ...string) {
	o.t.Helper()
	cmd := exec.Command(program, append(args, "-vconsole:off")...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+o.dir, "OVS_LOGDIR="+o.dir, "OVS_DBDIR="+o.dir)
	if err := o.NS.Do(cmd.Start); err != nil {
		o.t.Fatal(err)
	}
	o.daemons[program] = cmd
	o.t.Cleanup(func() { o.stop(program) })
}

// stop ends a daemon, if it runs.
func (o *ovs) stop(program string) {
	if cmd := o.daemons[program]; cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		delete(o.daemons, program)
	}
}

// wait waits for a file of a daemon.
func (o *ovs) wait(name string) {
	o.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		if _, err := os.Stat(filepath.Join(o.dir, name)); err == nil {
			return
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("%s did not come up", name)
		}
		o.Run("sleep 0.01")
	}
}

// vsctl runs ovs-vsctl, which waits until ovs-vswitchd has carried it out.
func (o *ovs) vsctl(args ...string) string {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), "ovs-vsctl", append([]string{"--timeout=20", "--db=unix:" + o.dir + "/db.sock"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		o.t.Fatalf("ovs-vsctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// passed returns when the switch has passed on all frames that it got: its main loop reads the ports and then answers.
func (o *ovs) passed() {
	o.t.Helper()
	for range 3 {
		if out, err := exec.CommandContext(o.t.Context(), "ovs-appctl", "-t", o.dir+"/vs.ctl", "version").CombinedOutput(); err != nil {
			o.t.Fatalf("ovs-appctl: %v\n%s", err, out)
		}
	}
}

// settle waits until ovs-vswitchd has carried out what is in the database.
func (o *ovs) settle() {
	o.t.Helper()
	for port, vlan := range o.stuck {
		o.vsctl("set", "port", port, "vlan_mode=access", "tag="+vlan, "trunks=[]", "protected=false")
	}
	o.vsctl("set", "open_vswitch", ".", "external_ids:test=settled") // waits
}

// forwarding waits until the switch forwards by nothing older: it looks at the flows that it has cached after the change of its configuration.
func (o *ovs) forwarding() {
	o.t.Helper()
	o.settle()
	if out, err := exec.CommandContext(o.t.Context(), "ovs-appctl", "-t", o.dir+"/vs.ctl", "revalidator/wait").CombinedOutput(); err != nil {
		o.t.Fatalf("ovs-appctl: %v\n%s", err, out)
	}
}

// executor is a new one, as after a restart of the server.
func (o *ovs) executor() *ethernet.Site {
	o.t.Helper()
	s, err := ethernet.New(o.settings, map[string]ethernet.Switch{"sw": New(o.settings.Switches[0])})
	if err != nil {
		o.t.Fatal(err)
	}
	return s
}

// fabricOf is a switch as the suite wants it.
type fabricOf struct{ *ovs }

func (f fabricOf) Executor() site.Site { return ethernettest.Named{Site: f.executor(), Switch: "sw"} }
func (f fabricOf) Settle()             { f.settle() }
func (f fabricOf) Plant(network int, at string) {
	f.vsctl("set", "port", at, "vlan_mode=access", fmt.Sprintf("tag=%d", network), "trunks=[]", "protected=false")
}

// Blind lets the switch find no device for a port.
func (f fabricOf) Blind(at, why string) {
	kind := "system"
	if why != "" {
		kind = "nosuchkind"
	}
	f.vsctl("set", "interface", at, "type="+kind)
	f.settle()
}

func (f fabricOf) Stick(at string, on bool) {
	delete(f.stuck, at)
	if on {
		f.stuck[at] = f.vsctl("get", "port", at, "tag")
	}
}

func TestSiteConformance(t *testing.T) {
	fabrictest.RunSite(t, fabrictest.SiteHarness{
		New: func(t *testing.T) fabrictest.SiteFabric {
			o := newOVS(t)
			if err := o.executor().Apply(context.Background(), before, nil); err != nil { // the switch's own trunks go
				t.Fatal(err)
			}
			o.settle()
			return fabricOf{o}
		},
		Access: true,
	})
}
