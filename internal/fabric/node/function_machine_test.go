package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// machineInit is the only program of the machine: it loads the function's driver, sets the interface up, and pings.
const machineInit = `#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
echo "UP after $(cut -d' ' -f1 /proc/uptime) s"
insmod /igbvf.ko
sleep 2
n=$(ls /sys/class/net | grep -v lo | head -1)
echo "NIC $n $(cat /sys/class/net/$n/address)"
get() { for w in $(cat /proc/cmdline); do case $w in $1=*) echo ${w#*=};; esac; done; }
ip addr add $(get own)/20 dev $n; ip link set $n up; sleep 2
echo "PINGS $(get friend) and $(get stranger)"
ping -c 5 -W 5 $(get friend) >/dev/null && echo "FRIEND reached" || echo "FRIEND silent"
ip route add $(get stranger) dev $n
ping -c 3 -W 3 $(get stranger) >/dev/null && echo "STRANGER reached" || echo "STRANGER silent"
poweroff -f
`

// machineInitrd makes the machine's initial RAM disk: busybox, the driver, and machineInit.
func machineInitrd(t *testing.T) string {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	busybox := needs.Program(t, "busybox")
	driver := filepath.Join("/lib/modules", strings.TrimSpace(string(release)), "kernel/drivers/net/ethernet/intel/igbvf/igbvf.ko")
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "initrd")
	for _, name := range []string{"bin", "dev", "proc", "sys"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err1 := os.ReadFile(busybox)
	module, err2 := os.ReadFile(driver)
	if err := errors.Join(err1, err2, os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755),
		os.WriteFile(filepath.Join(dir, "igbvf.ko"), module, 0o644), os.WriteFile(filepath.Join(dir, "init"), []byte(machineInit), 0o755)); err != nil {
		t.Fatal(err)
	}
	pack := exec.CommandContext(t.Context(), busybox, "sh", "-ec", busybox+" find . | "+busybox+" cpio -o -H newc >"+out)
	pack.Dir = dir
	if said, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return out
}

// machinePatience bounds a machine that is emulated by what is emulated itself.
const machinePatience = 12 * time.Minute

// machineArguments are QEMU's for every machine.
func machineArguments() []string {
	return []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none", "-machine", "q35,accel=tcg", "-cpu", "Nehalem",
		// Its clock goes by its instructions: by the host's, it would be late for each tick, and do nothing but ticks.
		"-icount", "shift=4", "-serial", "stdio",
	}
}

// machineCommandLine is the kernel's.
func machineCommandLine(own, friend, stranger netip.Addr) string {
	return fmt.Sprintf("console=ttyS0 loglevel=5 panic=-1 no_timer_check mitigations=off lsm= audit=0 nosmp own=%v friend=%v stranger=%v", own, friend, stranger)
}

// runMachine runs QEMU until it ends by itself, tells each line of the machine's console when it comes, and returns them all.
func runMachine(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), machinePatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, needs.Program(t, "qemu-system-x86_64"), append(machineArguments(), args...)...)
	console, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr, cmd.WaitDelay = cmd.Stdout, 10*time.Second
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(console); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		fmt.Printf("machine, after %4.0f s: %s\n", time.Since(began).Seconds(), lines.Text()) // t.Log of a test that hangs is never seen
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the machine ended after %v: %v", time.Since(began).Round(time.Second), errors.Join(err, ctx.Err()))
	}
	return said.String()
}

// machine takes a function back from its namespace and gives it to a virtual machine, whose only interface it is.
func (r *adapterRig) machine(t *testing.T, spaces map[string]namespace, own []fabric.Port, stranger fabric.Port) {
	t.Helper()
	kernel := os.Getenv("NEARMETAL_GUEST_KERNEL")
	if kernel == "" {
		t.Fatal("NEARMETAL_GUEST_KERNEL does not name the kernel of machines; run: make test-sriov-guest")
	}
	initrd, port := machineInitrd(t), own[0]
	if err := spaces[port.ID].Close(); err != nil {
		t.Fatal(err)
	}
	delete(spaces, port.ID)
	if err := r.fabric.Detach(t.Context(), port.ID); err != nil {
		t.Fatal(err)
	}
	port.ID = "uid1.m-9.2"
	r.networks[0].Ports[0] = port
	if err := r.fabric.Apply(t.Context(), r.networks); err != nil {
		t.Fatal(err)
	}
	state, err := r.fabric.AttachFunction(t.Context(), port, fabric.DriverVFIO)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = spaces[stranger.ID].try(fmt.Sprintf("ip route replace %v dev eth0", port.Address))
	out := runMachine(t, "-m", "192", "-kernel", kernel, "-initrd", initrd,
		"-append", machineCommandLine(port.Address, own[1].Address, stranger.Address),
		"-device", "pcie-root-port,id=root,chassis=1", "-device", "vfio-pci,bus=root,host="+state.PCI)
	for _, want := range []string{"FRIEND reached", "STRANGER silent", port.MAC} {
		if !strings.Contains(out, want) {
			t.Errorf("the machine did not say %q", want)
		}
	}
	if err := r.fabric.Detach(t.Context(), port.ID); err != nil {
		t.Fatal(err)
	}
}
