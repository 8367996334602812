package openvswitch

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet/ethernettest"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// before is earlier than every epoch of the suite.
var before = lifecycle.Epoch{Term: 0, Revision: 1}

// framesOf is a switch as the suite of frames wants it.
type framesOf struct{ *ovs }

func (f framesOf) Executor() *ethernet.Site { return f.executor() }
func (f framesOf) Meddle(port string) {
	f.VSCtl("clear", "port", port, "vlan_mode", "tag", "trunks", "--", "set", "port", port, "protected=false")
}

func (f framesOf) Ready() { f.Forwarding() }

func (f framesOf) Heard(from string, tag []byte) []string {
	return f.HeardFrame(from, tag, f.Passed)
}

func TestFrames(t *testing.T) {
	t.Parallel()
	ethernettest.Run(t, func(t *testing.T) ethernettest.Lab { return framesOf{newOVS(t)} })
}

// A former leader's server may have read the switch before the next leader told it anything, and send its change after that.
func TestAChangeThatWasDecidedBeforeALaterEpochChangesNothing(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	sw := New(o.Settings.Switches[0])
	former, present := lifecycle.Epoch{Term: 1, Revision: 9}, lifecycle.Epoch{Term: 2, Revision: 1}
	now, err := sw.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late := sw.guarded(now, former, sw.plan(now, map[string]ethernet.State{"a": {VLAN: 5}}))
	if err := sw.Apply(t.Context(), present, map[string]ethernet.State{"a": {VLAN: 6}}); err != nil {
		t.Fatal(err)
	}
	if _, err := sw.transact(t.Context(), late...); !errors.Is(err, errGuard) {
		t.Errorf("got %v, want %v", err, errGuard)
	}
	r, err := sw.Read(t.Context(), []string{"a"})
	if err != nil || r.Epoch != present || o.VSCtl("get", "port", "a", "tag") != "6" {
		t.Errorf("epoch %v, %v, VLAN %s", r.Epoch, err, o.VSCtl("get", "port", "a", "tag"))
	}
}

func TestWhatOthersWriteBesideTheEpochStays(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	sw := New(o.Settings.Switches[0])
	o.VSCtl("set", "bridge", "br0", "external_ids:owner=somebody")
	if err := sw.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, nil); err != nil {
		t.Fatal(err)
	}
	if ids := o.VSCtl("get", "bridge", "br0", "external_ids"); !strings.Contains(ids, "owner=somebody") || !strings.Contains(ids, `nearmetal-epoch="1.1"`) {
		t.Error(ids)
	}
	// The same again writes nothing: a switch has other work.
	before := o.VSCtl("get", "open_vswitch", ".", "next_cfg")
	if err := sw.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, map[string]ethernet.State{"so": {VLAN: ethernettest.OpenVLAN}}); err != nil {
		t.Fatal(err)
	}
	if first := o.VSCtl("get", "open_vswitch", ".", "next_cfg"); first == before {
		t.Error("a port without vlan_mode is as it is to be")
	}
	o.Settle()
	before = o.VSCtl("get", "open_vswitch", ".", "next_cfg")
	if err := sw.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, map[string]ethernet.State{"so": {VLAN: ethernettest.OpenVLAN}}); err != nil {
		t.Fatal(err)
	}
	if after := o.VSCtl("get", "open_vswitch", ".", "next_cfg"); after != before {
		t.Errorf("change %s after %s, though all is as it is to be", after, before)
	}
	o.VSCtl("set", "bridge", "br0", "external_ids:nearmetal-epoch=x")
	if err := sw.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, nil); err == nil || !strings.Contains(err.Error(), `is "x", which is no epoch`) {
		t.Errorf("an epoch that can't be read: %v", err)
	}
}

func TestAPortIsNotReadBeforeTheSwitchHasCarriedItOut(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	sw := New(o.Settings.Switches[0])
	o.Settle()
	o.Stop("ovs-vswitchd")
	if err := sw.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, map[string]ethernet.State{"a": {VLAN: 5}}); err != nil {
		t.Fatal(err)
	}
	if r, err := sw.Read(t.Context(), []string{"a"}); err != nil || len(r.Ports) > 0 || !strings.Contains(r.Unknown["a"], "ovs-vswitchd has carried out change") {
		t.Errorf("%+v, %v", r, err)
	}
	o.StartSwitch()
	for deadline := time.Now().Add(20 * time.Second); ; {
		r, err := sw.Read(t.Context(), []string{"a"})
		if err == nil && r.Ports["a"] == (ethernet.State{VLAN: 5}) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v", r, err)
		}
	}
}

func TestASwitchThatIsNotThereIsNamed(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	for address, want := range map[string]string{"unix:" + o.Dir + "/none.sock": "no such file", "tcp:127.0.0.1:1": "refused"} {
		cfg := o.Settings.Switches[0]
		cfg.Address = address
		if _, err := New(cfg).Read(t.Context(), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
	}
	cfg := o.Settings.Switches[0]
	cfg.Bridge = "br1"
	if _, err := New(cfg).Read(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "the switch has no bridge br1; make it with: ovs-vsctl add-br br1") {
		t.Errorf("got %v", err)
	}
	o.VSCtl("set-controller", "br0", "tcp:127.0.0.1:1")
	if _, err := New(o.Settings.Switches[0]).Read(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "bridge br0 has an OpenFlow controller, whose rules may pass frames between VLANs") {
		t.Errorf("got %v", err)
	}
	// One that accepts connections and says nothing.
	silent, err := net.Listen("unix", o.Dir+"/silent.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	cfg.Address = "unix:" + o.Dir + "/silent.sock"
	if _, err := New(cfg).Read(ctx, nil); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not answer in time") {
		t.Errorf("got %v", err)
	}
}

// Two switches with a link between them that carries all VLANs: protected ports of different switches hear each other, so no VLAN of theirs is the same.
func TestPortsOfTwoSwitchesHearEachOtherInNetworksOnly(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	o.VSCtl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=netdev",
		"--", "add-port", "br0", "up0", "--", "set", "interface", "up0", "type=patch", "options:peer=up1",
		"--", "add-port", "br1", "up1", "--", "set", "interface", "up1", "type=patch", "options:peer=up0",
		"--", "del-port", "br0", "c", "--", "add-port", "br1", "c", "--", "del-port", "br0", "m3", "--", "add-port", "br1", "m3")
	settings, err := ethernet.Parse(fmt.Appendf(nil, `
backend: openvswitch
vlans: 2-99
provisioning_vlan: 300
switches:
- {name: sw, address: "unix:%s/db.sock", bridge: br0, ports: [a, b], provisioning_ports: [m1, m2], isolated_vlan: 301}
- {name: s1, address: "unix:%s/db.sock", bridge: br1, ports: [c], provisioning_ports: [m3], isolated_vlan: 302}
`, o.Dir, o.Dir), o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	executor, err := ethernet.New(settings, map[string]ethernet.Switch{"sw": New(settings.Switches[0]), "s1": New(settings.Switches[1])})
	if err != nil {
		t.Fatal(err)
	}
	heard := func(from string, tag []byte, want ...string) {
		t.Helper()
		if got := o.HeardFrame(from, tag, o.Passed); !slices.Equal(got, want) {
			t.Errorf("port %s is heard at %v, want %v", from, got, want)
		}
	}
	apply := func(revision int64, networks ...site.Network) {
		t.Helper()
		if err := executor.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: revision}, networks); err != nil {
			t.Fatal(err)
		}
		o.Forwarding()
		if seen, err := executor.Observe(t.Context()); err != nil || seen.Epoch.Revision != revision || len(seen.Unknown) > 0 {
			t.Errorf("%+v, %v", seen, err)
		}
	}
	apply(1, site.Network{Number: 5, Ports: []site.Port{{At: "sw/a"}, {At: "s1/c"}}})
	heard("a", nil, "c")
	heard("c", nil, "a")
	heard("m1", nil, "m2", "m3", "so")
	apply(2, site.Network{Number: ethernet.Isolated, Ports: []site.Port{{At: "sw/m2", Limited: true}, {At: "s1/m3", Limited: true}}})
	heard("m2", nil, "si")
	heard("m3", nil)
	for from, vlans := range map[string][]int{"a": {4095, 4094}, "c": {4095, 4094}, "m2": {301, 302}, "m3": {301, 302}} {
		for _, vlan := range vlans {
			for _, p := range o.HeardFrame(from, []byte{0x81, 0, byte(vlan >> 8), byte(vlan)}, o.Passed) {
				t.Errorf("a frame of port %s with tag %d reaches port %s", from, vlan, p)
			}
		}
	}
}

func TestValuesOfOVSDB(t *testing.T) {
	t.Parallel()
	var row portRow
	text := `{"_uuid":["uuid","u1"],"name":"a","vlan_mode":["set",[]],"tag":5,"trunks":["set",[1,2]],"protected":true,"interfaces":["set",[["uuid","i1"],["uuid","i2"]]]}`
	if err := json.Unmarshal([]byte(text), &row); err != nil {
		t.Fatal(err)
	}
	if row.ID.ID != "u1" || len(row.Mode) != 0 || !slices.Equal(row.Tag, set[int]{5}) || !slices.Equal(row.Trunks, set[int]{1, 2}) || !row.Protected || len(row.Interfaces) != 2 {
		t.Errorf("%+v", row)
	}
	out, err := json.Marshal([]any{uuid{"u"}, set[int](nil), set[string]{"a"}, dictionary{"b": "2", "a": "1"}})
	if want := `[["uuid","u"],["set",[]],["set",["a"]],["map",[["a","1"],["b","2"]]]]`; err != nil || string(out) != want {
		t.Errorf("%s, %v; want %s", out, err, want)
	}
	for _, bad := range []string{`["map",[]]`, `{}`, `["set",5]`} {
		if err := json.Unmarshal([]byte(bad), new(set[int])); err == nil {
			t.Errorf("%s is read as a set", bad)
		}
	}
}

// authority issues certificates into a folder, without names of hosts, as ovs-pki does.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir}
	a.cert, a.key = a.issue(name)
	return a
}

// issue writes NAME.pem and NAME.key; the first is the authority itself.
func (a *authority) issue(name string) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: a.cert == nil, BasicConstraintsValid: true,
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func TestASwitchIsKnownByItsAuthority(t *testing.T) {
	t.Parallel()
	needs.Program(t, "ovsdb-server")
	dir := ethernettest.TempDir(t)
	own, other := newAuthority(t, dir, "own"), newAuthority(t, dir, "other")
	own.issue("switch")
	own.issue("server")
	other.issue("stranger")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	_ = free.Close()
	if out, err := exec.Command("ovsdb-tool", "create", dir+"/conf.db", "/usr/share/openvswitch/vswitch.ovsschema").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := exec.Command("ovsdb-server", dir+"/conf.db", "--remote=pssl:"+port+":127.0.0.1", "--private-key="+dir+"/switch.key", "--certificate="+dir+"/switch.pem", "--ca-cert="+dir+"/own.pem",
		"--unixctl="+dir+"/db.ctl", "-vconsole:off")
	server.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	read := func(ca, identity string) error {
		sw := New(ethernet.SwitchSettings{Address: "ssl:" + address, Bridge: "br0", CA: dir + "/" + ca + ".pem", Certificate: dir + "/" + identity + ".pem", Key: dir + "/" + identity + ".key"})
		_, err := sw.transact(t.Context(), operation{"op": "comment", "comment": "none"})
		return err
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		err := read("own", "server")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if err := read("other", "server"); err == nil || !strings.Contains(err.Error(), "is not of the authority in "+dir+"/other.pem") {
		t.Errorf("a switch of another authority: %v", err)
	}
	if err := read("own", "stranger"); err == nil {
		t.Error("the switch lets a stranger in")
	}
	if err := read("own", "none"); err == nil || !strings.Contains(err.Error(), "this server's identity for switches") {
		t.Errorf("without an identity: %v", err)
	}
}

func TestASwitchRefusesAnOlderEpoch(t *testing.T) {
	t.Parallel()
	o := newOVS(t)
	sw := New(o.Settings.Switches[0])
	if err := sw.Apply(t.Context(), lifecycle.Epoch{Term: 2, Revision: 1}, map[string]ethernet.State{"a": {VLAN: 6}}); err != nil {
		t.Fatal(err)
	}
	if err := sw.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 9}, map[string]ethernet.State{"a": {VLAN: 5}}); !errors.Is(err, site.ErrStale) || o.VSCtl("get", "port", "a", "tag") != "6" {
		t.Errorf("got %v, and VLAN %s", err, o.VSCtl("get", "port", "a", "tag"))
	}
}
