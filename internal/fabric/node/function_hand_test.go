package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// handPairs is how many pairs of one machine are measured.
const handPairs = 6

// maxHandRatio is how much longer than by hand a start with a function may take.
const maxHandRatio = 1.2

// TestAMachineWithAFunctionStartsAsSoonAsByHand compares two ways to a virtual machine whose only interface is a function: by the fabric, and with the
// writes to sysfs and the commands that a person would give. Both start the same QEMU, and end when the machine's kernel says its first word: what follows
// is the same for both.
func TestAMachineWithAFunctionStartsAsSoonAsByHand(t *testing.T) {
	r := newAdapterRig(t, 7)
	kernel := os.Getenv("NEARMETAL_GUEST_KERNEL")
	ports := r.tenant(101, 0, 7)
	if err := r.fabric.Apply(t.Context(), r.networks); err != nil {
		t.Fatal(err)
	}
	initrd := machineInitrd(t)
	generation := 1
	own := func(i int) string {
		p := &r.networks[0].Ports[i]
		p.ID = fmt.Sprintf("uid1.m-%d.%d", i, generation)
		if err := r.fabric.Apply(t.Context(), r.networks); err != nil {
			t.Fatal(err)
		}
		state, err := r.fabric.AttachFunction(t.Context(), *p, fabric.DriverVFIO)
		if err != nil {
			t.Fatal(err)
		}
		return state.PCI
	}
	byHand := func(i int) string {
		pci := r.pci(t, ports[i].Function)
		if err := r.assignByHand(t.Context(), ports[i], pci); err != nil {
			t.Fatal(err)
		}
		return pci
	}
	release := func(i int) {
		if err := r.fabric.Detach(t.Context(), fabric.AssignmentOf(r.networks[0].Ports[i].ID)); err != nil {
			t.Fatal(err)
		}
	}
	releaseByHand := func(i int) {
		if err := r.releaseByHand(t.Context(), ports[i], r.pci(t, ports[i].Function)); err != nil {
			t.Fatal(err)
		}
	}
	start := func(count int, assign func(i int) string, release func(i int)) float64 {
		generation++ // a member that was released never has a function again
		began := time.Now()
		var ends []func()
		var up sync.WaitGroup
		for i, p := range ports[:count] {
			m := startByFunction(t, kernel, initrd, assign(i), p)
			ends = append(ends, m.end)
			up.Go(m.awaitKernel)
		}
		up.Wait()
		took := time.Since(began).Seconds()
		for i, end := range ends {
			end()
			release(i)
		}
		return took
	}
	ratios := make([]float64, 0, handPairs)
	for i := range handPairs {
		var hand, ours float64
		if i%2 == 0 {
			hand, ours = start(1, byHand, releaseByHand), start(1, own, release)
		} else {
			ours, hand = start(1, own, release), start(1, byHand, releaseByHand)
		}
		ratios = append(ratios, ours/hand)
		fmt.Printf("measured: pair %d: %.1f s, by hand %.1f s, ratio %.3f\n", i+1, ours, hand, ours/hand)
	}
	hand, ours := start(len(ports), byHand, releaseByHand), start(len(ports), own, release)
	fmt.Printf("measured: seven at once: %.1f s, by hand %.1f s, ratio %.3f\n", ours, hand, ours/hand)
	// No ratio fails the test: the machine that emulates this one has other things to do as well.
	fmt.Printf("measured: one machine, median of %d pairs: ratio %.3f, %.3f to %.3f, wanted at most %.1f\n",
		handPairs, measure.Median(ratios), slices.Min(ratios), slices.Max(ratios), maxHandRatio)
	r.auditClean(t)
}

// assignByHand sets a function up for a machine as a person would.
func (r *adapterRig) assignByHand(ctx context.Context, p fabric.Port, pci string) error {
	index, err := p.Function.Index()
	if err != nil {
		return err
	}
	command := fmt.Sprintf("ip link set %s vf %d mac %s vlan 101 spoofchk on", r.netdev, index, p.MAC)
	if said, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, said)
	}
	device := "/sys/bus/pci/devices/" + pci
	if err := os.WriteFile(device+"/driver/unbind", []byte(pci), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(os.WriteFile(device+"/driver_override", []byte("vfio-pci"), 0), os.WriteFile("/sys/bus/pci/drivers_probe", []byte(pci), 0))
}

// releaseByHand undoes assignByHand.
func (r *adapterRig) releaseByHand(ctx context.Context, p fabric.Port, pci string) error {
	index, err := p.Function.Index()
	if err != nil {
		return err
	}
	device := "/sys/bus/pci/devices/" + pci
	if err := errors.Join(os.WriteFile(device+"/driver/unbind", []byte(pci), 0), os.WriteFile(device+"/driver_override", []byte("\n"), 0)); err != nil {
		return err
	}
	command := fmt.Sprintf("ip link set %s vf %d mac 00:00:00:00:00:00 vlan 0", r.netdev, index)
	if said, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, said)
	}
	return nil
}

// handMachine is a machine that runs until it is ended.
type handMachine struct {
	awaitKernel func()
	end         func()
}

// startByFunction starts a machine on a function.
func startByFunction(t *testing.T, kernel, initrd, pci string, p fabric.Port) handMachine {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), machinePatience)
	cmd := exec.CommandContext(ctx, needs.Program(t, "qemu-system-x86_64"), append(machineArguments(),
		"-m", "192", "-kernel", kernel, "-initrd", initrd, "-append", "earlyprintk=ttyS0 "+machineCommandLine(p.Address, p.Address, p.Address),
		"-device", "pcie-root-port,id=root,chassis=1", "-device", "vfio-pci,bus=root,host="+pci)...)
	console, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr, cmd.WaitDelay = cmd.Stdout, 10*time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return handMachine{
		awaitKernel: func() {
			var said strings.Builder
			for lines := bufio.NewScanner(console); lines.Scan(); {
				said.WriteString(lines.Text() + "\n")
				if strings.Contains(lines.Text(), "Linux version") {
					return
				}
			}
			t.Errorf("the machine on %s ended without a word of its kernel:\n%s", filepath.Base(pci), said.String())
		},
		end: func() {
			cancel()
			_ = cmd.Wait() // it was killed
		},
	}
}
