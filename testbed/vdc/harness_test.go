package vdc

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/hostsnapshot"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// testName is of the data centre of these tests.
const testName = "selftest"

// patience is for what a machine does: seconds on a machine with nothing else to do.
const patience = 2 * time.Minute

// needTestbed skips what emulates machines unless it is asked for.
func needTestbed(t *testing.T) {
	t.Helper()
	needs.Request(t, "NEARMETAL_TESTBED", "make test-testbed")
}

// nothingLeft looks at the whole host now and again when the test is over. Other data centres are none of its business.
func nothingLeft(t *testing.T) {
	t.Helper()
	if err := hostsnapshot.AdoptOrphans(); err != nil {
		t.Fatal(err)
	}
	opts := hostsnapshot.Options{FileRoots: []string{"/run", "/etc", "/var/lib", "/var/log", BaseDir}, Ignore: elsewhere}
	before, err := hostsnapshot.Take(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The keeper of a starter that was killed fell to this process.
		for pid, err := 1, error(nil); pid > 0 && err == nil; {
			pid, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
		_, differences, err := before.Settle(context.Background(), opts, 15*time.Second)
		if err != nil {
			t.Error(err)
		}
		for _, d := range hostsnapshot.Counting(differences) {
			// Others pin namespaces meanwhile, as other sites do; a data centre never does.
			if !strings.Contains(d.Detail, "kept by a mount") {
				t.Error("left on the host:", d)
			}
		}
	})
}

// elsewhere are other data centres, and mounts where a data centre has none: descent does not tell whose a mount is.
func elsewhere(kind hostsnapshot.Kind, key string) bool {
	switch kind {
	case hostsnapshot.File:
		return strings.HasPrefix(key, BaseDir) && !strings.HasPrefix(key, Dir(testName))
	case hostsnapshot.Mount:
		_, place, _ := strings.Cut(key, " on ")
		return !slices.ContainsFunc([]string{"/proc ", "/sys ", "/run", "/etc", "/var/lib", "/var/log", "/var/cache", Dir(testName)}, func(ours string) bool {
			return strings.HasPrefix(place, ours)
		})
	default:
		return false
	}
}

// field is a data centre, and who operates it in a network namespace of his own.
type field struct {
	t  *testing.T
	dc *DataCentre
	op netns.Handle

	mu       sync.Mutex
	requests []request
	changed  chan struct{}
}

// request is a DHCP request that came out of the cable.
type request struct {
	at     time.Time
	packet *dhcpv4.DHCPv4
}

// testConfig is two machines, one of each kind.
func testConfig(namespace string) Config {
	return Config{
		Name: testName, Namespace: namespace,
		Machines: []MachineConfig{
			{Name: "bios1", Firmware: api.FirmwareBIOS, MemoryMiB: 512},
			{Name: "uefi1", Firmware: api.FirmwareUEFI, MemoryMiB: 512, OEMStrings: []string{"nearmetal-token=abc"}},
		},
	}
}

func newOperator(t *testing.T) netns.Handle {
	t.Helper()
	op, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { op.Close() })
	return op
}

func newField(t *testing.T) *field { return fieldOf(t, func(*Config) {}) }

// fieldOf is newField with other settings.
func fieldOf(t *testing.T, change func(*Config)) *field {
	t.Helper()
	f := &field{t: t, op: newOperator(t), changed: make(chan struct{})}
	cfg := testConfig(f.op.Path())
	change(&cfg)
	began := time.Now()
	dc, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("measured: start of %d machines, all off: %.2f s", len(cfg.Machines), time.Since(began).Seconds())
	f.dc = dc
	t.Cleanup(func() {
		began := time.Now()
		if err := dc.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("measured: close: %.2f s", time.Since(began).Seconds())
	})
	f.sniff()
	return f
}

// sniff records the DHCP requests on the cable.
func (f *field) sniff() {
	var conn *packet.Conn
	err := f.op.Do(func() error {
		link, err := net.InterfaceByName("nmprov0")
		if err != nil {
			return err
		}
		conn, err = packet.Listen(link, packet.Raw, unix.ETH_P_IP, nil)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	go func() {
		frame := make([]byte, 4096)
		for {
			n, _, err := conn.ReadFrom(frame)
			if err != nil {
				return
			}
			const headers, bootps = 14 + 20 + 8, 67
			if n <= headers || frame[23] != unix.IPPROTO_UDP || frame[36] != 0 || frame[37] != bootps {
				continue
			}
			if p, err := dhcpv4.FromBytes(frame[headers:n]); err == nil {
				f.mu.Lock()
				f.requests = append(f.requests, request{time.Now(), p})
				close(f.changed)
				f.changed = make(chan struct{})
				f.mu.Unlock()
			}
		}
	}()
}

// firstRequest waits for a machine's first DHCP request since then.
func (f *field) firstRequest(m Machine, since time.Time) request {
	f.t.Helper()
	deadline := time.After(patience)
	for {
		f.mu.Lock()
		changed := f.changed
		for _, r := range f.requests {
			if r.at.After(since) && r.packet.ClientHWAddr.String() == m.MAC {
				f.mu.Unlock()
				return r
			}
		}
		f.mu.Unlock()
		select {
		case <-changed:
		case <-deadline:
			console, _ := os.ReadFile(m.ConsoleLog)
			f.t.Fatalf("%s sent no DHCP request; its console:\n%s", m.Name, console)
		}
	}
}

// silentSince tells whether a machine has sent no DHCP request since then.
func (f *field) silentSince(m Machine, since time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if r.at.After(since) && r.packet.ClientHWAddr.String() == m.MAC {
			return false
		}
	}
	return true
}

// printed waits until a machine's console has printed text.
func (f *field) printed(m Machine, text string) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%q on the console of %s", text, m.Name), func() bool {
		console, _ := os.ReadFile(m.ConsoleLog)
		return bytes.Contains(console, []byte(text))
	})
}

func (f *field) eventually(what string, holds func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	if until(ctx, nil, func() error {
		if holds() {
			return nil
		}
		return context.Canceled
	}) != nil {
		f.t.Fatalf("waited %v for %s", patience, what)
	}
}

// run runs a program where the operator is.
func (f *field) run(command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := f.op.Do(cmd.Start); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return output.String(), err
}

// ipmi runs ipmitool against a machine's BMC, which it asks once and gives that many seconds: an order takes one or two on a busy machine.
func (f *field) ipmi(m Machine, seconds string, command ...string) (string, error) {
	return f.run(append([]string{"ipmitool", "-v", "-I", "lanplus", "-N", seconds, "-R", "1", "-H", m.bmc.String(), "-U", m.User, "-P", m.Password}, command...)...)
}

func (f *field) off(m Machine) {
	f.t.Helper()
	if err := f.dc.CutPower(m.Name); err != nil {
		f.t.Fatal(err)
	}
	f.power(m, api.PowerOff)
}

func (f *field) power(m Machine, want api.PowerState) {
	f.t.Helper()
	if got, err := f.dc.Power(m.Name); got != want || err != nil {
		f.t.Errorf("%s is %s, %v; want %s", m.Name, got, err, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// links are those in a namespace.
func links(t *testing.T, h netns.Handle) []string {
	t.Helper()
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(h.FD()))
	must(t, err)
	defer nl.Close()
	all, err := nl.LinkList()
	must(t, err)
	var names []string
	for _, link := range all {
		names = append(names, link.Attrs().Name)
	}
	return names
}
