package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// standbyInit is the only program of a machine that has a standby. It does what the guest's boot agent does: it gives the address to the master alone, and
// announces it whenever the function comes or goes.
const standbyInit = `#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
for n in all default; do echo 1 >/proc/sys/net/ipv6/conf/$n/disable_ipv6; done
echo "UP after $(cut -d' ' -f1 /proc/uptime) s"
get() { for w in $(cat /proc/cmdline); do case $w in $1=*) echo ${w#*=};; esac; done; }
own=$(get own)
for m in $(cat /modules); do insmod /$m || echo "INSMOD $m failed"; done
master=; while [ -z "$master" ]; do
	for n in /sys/class/net/*/master; do [ -e $n ] && master=$(basename $(readlink $n)); done; sleep 1
done
ip addr add $own/20 dev $master; ip link set $master up
echo "MASTER $master $(cat /sys/class/net/$master/address)"
was=unknown
while :; do
	now=standby
	for n in /sys/class/net/*/master; do
		s=$(dirname $n)
		[ -e $n ] && [ "$(readlink -f $s/device)" != "$(readlink -f /sys/class/net/$master/device)" ] && [ "$(cat $s/carrier 2>/dev/null)" = 1 ] && now=function
	done
	if [ $now != $was ]; then
		echo "CARRIED by $now after $(cut -d' ' -f1 /proc/uptime) s"
		arping -U -c 2 -I $master $own >/dev/null 2>&1 || echo "ARPING failed"
		was=$now
	fi
	sleep 1
done
`

// moduleFiles returns the files of modules and of what they need, in the order of loading.
func moduleFiles(t *testing.T, names ...string) (files []string) {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("/lib/modules", strings.TrimSpace(string(release)))
	list, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		for line := range strings.Lines(string(list)) {
			file, needed, _ := strings.Cut(strings.TrimSpace(line), ":")
			if filepath.Base(file) != name+".ko" {
				continue
			}
			chain := append([]string{file}, strings.Fields(needed)...)
			slices.Reverse(chain) // the list begins with what needs the others
			for _, f := range chain {
				if f = filepath.Join(dir, f); !slices.Contains(files, f) {
					files = append(files, f)
				}
			}
		}
	}
	return files
}

// standbyInitrd makes the machine's initial RAM disk: busybox, its modules, and standbyInit.
func standbyInitrd(t *testing.T) string {
	t.Helper()
	busybox := needs.Program(t, "busybox")
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "initrd")
	for _, name := range []string{"bin", "dev", "proc", "sys"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var order []string
	for _, file := range moduleFiles(t, "virtio_pci", "virtio_net", "igbvf") {
		module, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Base(file), module)
		order = append(order, filepath.Base(file))
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	write("bin/busybox", program)
	write("modules", []byte(strings.Join(order, "\n")+"\n"))
	write("init", []byte(standbyInit))
	pack := exec.CommandContext(t.Context(), busybox, "sh", "-ec", busybox+" find . | "+busybox+" cpio -o -H newc >"+out)
	pack.Dir = dir
	if said, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return out
}

// runningMachine is a QEMU that the test talks to.
type runningMachine struct {
	monitor net.Conn
	events  chan string
	answers chan json.RawMessage
	said    chan string
}

// startMachine starts QEMU, which ends with the test.
func startMachine(t *testing.T, args ...string) *runningMachine {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*machinePatience)
	socket := filepath.Join(t.TempDir(), "monitor")
	cmd := exec.CommandContext(ctx, needs.Program(t, "qemu-system-x86_64"), append([]string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35,accel=tcg", "-cpu", "Nehalem",
		"-icount", "shift=4", "-serial", "stdio", "-qmp", "unix:" + socket + ",server=on,wait=on",
	}, args...)...)
	console, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr, cmd.WaitDelay = cmd.Stdout, 10*time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	m := &runningMachine{events: make(chan string, 100), answers: make(chan json.RawMessage, 10), said: make(chan string, 10_000)}
	began := time.Now()
	go func() {
		for lines := bufio.NewScanner(console); lines.Scan(); {
			fmt.Printf("machine, after %4.0f s: %s\n", time.Since(began).Seconds(), lines.Text())
			m.said <- lines.Text()
		}
		close(m.said)
	}()
	for m.monitor == nil {
		if m.monitor, err = net.Dial("unix", socket); err != nil && ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for lines := bufio.NewScanner(m.monitor); lines.Scan(); {
			var message struct {
				Event  string          `json:"event"`
				Return json.RawMessage `json:"return"`
				Error  json.RawMessage `json:"error"`
			}
			_ = json.Unmarshal(lines.Bytes(), &message)
			switch {
			case message.Event != "":
				fmt.Printf("machine, after %4.0f s: %s\n", time.Since(began).Seconds(), lines.Text())
				m.events <- lines.Text()
			case message.Return != nil || message.Error != nil:
				m.answers <- append(message.Return, message.Error...)
			}
		}
	}()
	m.tell(t, `{"execute":"qmp_capabilities"}`)
	return m
}

// tell has QEMU carry out a command.
func (m *runningMachine) tell(t *testing.T, command string) {
	t.Helper()
	if _, err := m.monitor.Write([]byte(command + "\n")); err != nil {
		t.Fatal(err)
	}
	if answer := <-m.answers; string(answer) != "{}" {
		t.Fatalf("%s: %s", command, answer)
	}
}

// mustSay waits for a line of the console, or an event, with a text.
func mustSay(t *testing.T, lines <-chan string, text string) {
	t.Helper()
	deadline := time.After(machinePatience)
	for {
		select {
		case line, more := <-lines:
			if strings.Contains(line, text) {
				return
			}
			if !more {
				t.Fatalf("the machine ended and did not say %q", text)
			}
		case <-deadline:
			t.Fatalf("the machine did not say %q", text)
		}
	}
}

// pinger reaches a machine again and again.
type pinger struct {
	answers       chan bool
	reached, lost int
}

// newPinger pings from a namespace, at most five times a second, until the test ends.
func newPinger(t *testing.T, from namespace, to fabric.Port) *pinger {
	p := &pinger{answers: make(chan bool, 10_000)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, err := from.try(fmt.Sprintf("busybox ping -c 1 -W 2 %v && sleep 0.2", to.Address))
			p.answers <- err == nil
		}
	}()
	return p
}

// count counts what came of all pings until now.
func (p *pinger) count() (reached, lost int) {
	for {
		select {
		case answered := <-p.answers:
			p.add(answered)
		default:
			return p.reached, p.lost
		}
	}
}

func (p *pinger) add(answered bool) {
	if answered {
		p.reached++
	} else {
		p.lost++
	}
}

// mustReach waits until the machine was reached often enough from now on, and says how often it was not since the last call.
func (p *pinger) mustReach(t *testing.T, what string, times int) {
	t.Helper()
	before := p.lost
	enough, _ := p.count()
	enough += times
	deadline := time.After(90 * time.Second)
	for p.reached < enough {
		select {
		case answered := <-p.answers:
			p.add(answered)
		case <-deadline:
			t.Errorf("%s: not reached often enough; %d pings had no answer", what, p.lost-before)
			return
		}
	}
	fmt.Printf("%s: reached; %d pings had no answer since it was last looked at\n", what, p.lost-before)
}

// sentBy returns how many packets a member sent by its TAP device.
func sentBy(t *testing.T, p fabric.Port) uint64 {
	t.Helper()
	link, err := netlink.LinkByName(plan.PortName(p.ID))
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().Statistics.RxPackets
}

// TestAStandbyCarriesTheTrafficWhileAFunctionIsUnplugged takes a function from a machine that runs, as a save or a move does, and gives it another one.
// A member of its network, in a network namespace with a function of the same adapter, reaches it all the time but for moments.
func TestAStandbyCarriesTheTrafficWhileAFunctionIsUnplugged(t *testing.T) {
	r := newAdapterRig(t, 3)
	_ = r.fabric.Close()
	var err error
	if r.fabric, err = New(Config{Config: plan.Config{Trunk: r.netdev}, Functions: r.manager}); err != nil {
		t.Fatal(err)
	}
	kernel := os.Getenv("NEARMETAL_GUEST_KERNEL")
	if kernel == "" {
		t.Fatal("NEARMETAL_GUEST_KERNEL does not name the kernel of machines; run: make test-sriov-guest")
	}
	initrd, ports := standbyInitrd(t), r.tenant(101, 0, 2)
	ports[0].Standby = true
	if err := r.fabric.Apply(t.Context(), r.networks); err != nil {
		t.Fatal(err)
	}
	friend := r.move(t, ports[1])
	if err := r.fabric.Attach(t.Context(), ports[0], fabric.TAP(ports[0])); err != nil {
		t.Fatal(err)
	}
	state, err := r.fabric.AttachFunction(t.Context(), ports[0], fabric.DriverVFIO)
	if err != nil {
		t.Fatal(err)
	}
	m := startMachine(t, "-m", "192", "-kernel", kernel, "-initrd", initrd,
		"-append", fmt.Sprintf("console=ttyS0 loglevel=5 panic=-1 no_timer_check mitigations=off lsm= audit=0 nosmp own=%v", ports[0].Address),
		"-device", "pcie-root-port,id=root1,chassis=1", "-device", "pcie-root-port,id=root2,chassis=2",
		"-netdev", "tap,id=bridge,ifname="+plan.PortName(ports[0].ID)+",script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=bridge,id=ua-standby0,bus=root1,failover=on,romfile=,mac="+ports[0].MAC,
		// As libvirt writes it: QEMU 7.2 remembers the name of a hidden device that is written otherwise, and refuses it afterwards.
		"-device", fmt.Sprintf(`{"driver":"vfio-pci","bus":"root2","id":"function0","failover_pair_id":"ua-standby0","host":%q}`, state.PCI))
	mustSay(t, m.said, "MASTER")
	mustSay(t, m.said, "CARRIED by function")
	p := newPinger(t, friend, ports[0])
	p.mustReach(t, "by the function", 5)
	before := sentBy(t, ports[0])
	p.mustReach(t, "by the function, again", 10)
	if sent := sentBy(t, ports[0]) - before; sent > 0 {
		t.Errorf("while it has a function, the machine sent %d packets by its standby", sent)
	}

	m.tell(t, `{"execute":"device_del","arguments":{"id":"function0"}}`)
	mustSay(t, m.events, `"DEVICE_DELETED", "data": {"device": "function0"`)
	if err := r.fabric.ParkFunction(t.Context(), ports[0]); err != nil {
		t.Fatal(err)
	}
	mustSay(t, m.said, "CARRIED by standby")
	before = sentBy(t, ports[0])
	p.mustReach(t, "by the standby", 20)
	if sent := sentBy(t, ports[0]) - before; sent < 10 {
		t.Errorf("without a function, the machine sent %d packets by its standby", sent)
	}

	owner, err := fabric.OwnerOf(ports[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.manager.Release(t.Context(), owner, ports[0].Function); err != nil {
		t.Fatal(err)
	}
	ports[0].Function.Part = fabric.Part(2)
	if err := r.fabric.Apply(t.Context(), r.networks); err != nil {
		t.Fatal(err)
	}
	if state, err = r.fabric.AttachFunction(t.Context(), ports[0], fabric.DriverVFIO); err != nil {
		t.Fatal(err)
	}
	// QEMU 7.2 takes no function of another name for the same standby.
	m.tell(t, fmt.Sprintf(`{"execute":"device_add","arguments":{"driver":"vfio-pci","bus":"root2","id":"function0","failover_pair_id":"ua-standby0","host":%q}}`, state.PCI))
	mustSay(t, m.said, "CARRIED by function")
	p.mustReach(t, "by another function", 5)
	before = sentBy(t, ports[0])
	p.mustReach(t, "by another function, again", 10)
	if sent := sentBy(t, ports[0]) - before; sent > 0 {
		t.Errorf("with another function, the machine sent %d packets by its standby", sent)
	}
	reached, lost := p.count()
	fmt.Printf("in all: reached %d times, %d times not\n", reached, lost)
	if drifts, err := r.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}

	_, _ = m.monitor.Write([]byte(`{"execute":"quit"}` + "\n"))
	for range m.said { // until it has ended
	}
	if err := errors.Join(friend.Close(), r.fabric.Detach(t.Context(), ports[0].ID), r.fabric.Detach(t.Context(), ports[1].ID)); err != nil {
		t.Fatal(err)
	}
	r.auditClean(t)
	if filters := vlanFilters(t, r.networks[0]); len(filters) > 0 {
		t.Errorf("the trunk still takes %v", filters)
	}
}

// vlanFilters are the addresses that the trunk takes for the VLAN of a network.
func vlanFilters(t *testing.T, n fabric.Network) []string {
	t.Helper()
	link, err := netlink.LinkByName(plan.VLANName(n.Index))
	if err != nil {
		t.Fatal(err)
	}
	filters, err := filtersOf(link.Attrs().Index)
	if err != nil {
		t.Fatal(err)
	}
	return filters
}
