package inspection

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/devices"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/health"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
	"github.com/nearmetal/nearmetal/internal/machine/lldp"
)

const (
	// neighborWait is how long switches are listened to: they speak every 30 s (IEEE 802.1AB, msgTxInterval).
	neighborWait = 32 * time.Second
	// virtualNeighborWait is the same in virtual machines, at the other end of whose NICs is software that rarely speaks.
	virtualNeighborWait = 3 * time.Second
	// linkWait is how long a NIC that was just taken up is given to find its link.
	linkWait = 6 * time.Second
	linkPoll = 100 * time.Millisecond
)

// Run looks at the running machine: it takes its NICs up and leaves them so, collects what there is, listens to the switches and checks
// everything's health, each check for at most deadline. It never fails: what could not be found out is a failed result of the check
// "inspection", which blocks nothing by itself.
func Run(ctx context.Context, bootMAC string, deadline time.Duration) boot.Report {
	start := time.Now()
	machine := devices.Machine{}
	tree := sysfs.At("/")
	var problems []Problem
	physical := physicalNICs(tree)
	for _, nic := range physical {
		if err := machine.RaiseLink(nic); err != nil {
			problems = append(problems, Problem{"nics", err.Error()})
		}
	}
	waitForLinks(ctx, tree, physical)

	s := Source{Root: "/", BootMAC: bootMAC, Devices: machine, PartDeadline: deadline}
	hw, more := Collect(ctx, s)
	problems = append(problems, more...)

	var neighbors map[string]api.Neighbor
	var hearing sync.WaitGroup
	hearing.Go(func() { neighbors = listen(ctx, hw) })
	results := checkHealth(ctx, s, hw, deadline)
	hearing.Wait()
	for i := range hw.NICs {
		if n, ok := neighbors[hw.NICs[i].Name]; ok {
			hw.NICs[i].LLDP = &n
		}
	}
	return boot.Report{Hardware: hw, Health: append(results, inspectionResult(problems, time.Since(start)))}
}

// Health runs the checks only, as a boot into an environment does.
func Health(ctx context.Context, deadline time.Duration) []api.HealthResult {
	start := time.Now()
	s := Source{Root: "/", Devices: devices.Machine{}, PartDeadline: deadline}
	hw, problems := Collect(ctx, s)
	return append(checkHealth(ctx, s, hw, deadline), inspectionResult(problems, time.Since(start)))
}

func checkHealth(ctx context.Context, s Source, hw api.Hardware, deadline time.Duration) []api.HealthResult {
	tree := sysfs.At(s.Root)
	table, _ := readTable(source{Source: s, tree: tree}) // a broken one is told by readFirmware
	return health.Run(ctx, health.Machine{
		Tree: tree, Hardware: hw, InstalledBytes: table.MemoryBytes(), BootMAC: s.BootMAC, Disks: realDisks{}, Now: time.Now,
	}, health.Checks(), deadline)
}

// inspectionResult tells what could not be found out.
func inspectionResult(problems []Problem, took time.Duration) api.HealthResult {
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.String()
	}
	result := api.HealthResult{Check: "inspection", OK: len(problems) == 0, Message: "all hardware information was read", DurationSeconds: took.Seconds()}
	if !result.OK {
		result.Message = strings.Join(texts, "; ")
	}
	return result
}

// physicalNICs are the names of the interfaces with a device behind them.
func physicalNICs(tree sysfs.Tree) []string {
	var names []string
	for _, name := range tree.Names("sys/class/net") {
		if tree.Text("sys/class/net/"+name+"/type") == arphrdEther && tree.Exists("sys/class/net/"+name+"/device") {
			names = append(names, name)
		}
	}
	return names
}

// waitForLinks waits until every NIC has its link, or long enough to know that the others have none.
func waitForLinks(ctx context.Context, tree sysfs.Tree, nics []string) {
	until := time.NewTimer(linkWait)
	defer until.Stop()
	poll := time.NewTicker(linkPoll) // carrier changes by netlink would not be sooner: what is waited for here are those that never come
	defer poll.Stop()
	for slices.ContainsFunc(nics, func(nic string) bool { return tree.Text("sys/class/net/"+nic+"/carrier") != "1" }) {
		select {
		case <-ctx.Done():
			return
		case <-until.C:
			return
		case <-poll.C:
		}
	}
}

// listen hears the switches at the NICs that have a link.
func listen(ctx context.Context, hw api.Hardware) map[string]api.Neighbor {
	var linked []string
	for _, nic := range hw.NICs {
		if nic.Carrier {
			linked = append(linked, nic.Name)
		}
	}
	wait := neighborWait
	if slices.Contains(hw.CPU.Flags, "hypervisor") {
		wait = virtualNeighborWait
	}
	neighbors, _ := lldp.Listen(ctx, linked, wait) // a kernel without packet sockets hears nothing, and nothing else is wrong with it
	return neighbors
}

// realDisks are the running machine's.
type realDisks struct{}

// Open implements health.Disks. The page cache is emptied of the disk first, so that the disk itself is read.
func (realDisks) Open(name string) (io.ReadSeekCloser, error) {
	file, err := os.Open("/dev/" + name)
	if err != nil {
		return nil, err
	}
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return nil, fmt.Errorf("empty the cache of %s: %w", name, err)
	}
	return file, nil
}

// Wear implements health.Disks.
func (realDisks) Wear(disk api.Disk) (devices.Wear, error) {
	switch disk.Transport {
	case "nvme":
		return devices.Machine{}.NVMeWear(disk.Name)
	case "sata", "sas":
		return devices.Machine{}.ATAWear(disk.Name)
	}
	return devices.Wear{}, nil
}
