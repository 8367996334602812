package sriov_test

import (
	"errors"
	"fmt"
	"os"
	"path"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov/modelhost"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// BenchmarkAFunctionIsAssignedAndReleased gives a virtual function to a machine and takes it back, on the model host: by the manager with its ledger on
// the disk for temporary files, by one with its ledger in memory, and by hand, which is the same writes to sysfs and by netlink without owners, looks
// and read-back. The model answers at once, so the times are what the manager itself and its disk take: on hardware, the calls to the kernel come on
// top, on all sides.
func BenchmarkAFunctionIsAssignedAndReleased(b *testing.B) {
	sides := []functionSide{newManaged(b, "on-disk", os.TempDir()), newManaged(b, "in-memory", "/dev/shm"), newByHand(b)}
	assigns, releases := make([][]float64, len(sides)), make([][]float64, len(sides))
	for round := range b.N {
		for i := range sides {
			at := (i + round) % len(sides)
			assigned, released := sides[at].cycle(round)
			assigns[at], releases[at] = append(assigns[at], assigned), append(releases[at], released)
		}
	}
	for i, s := range sides {
		for what, took := range map[string][]float64{"assign": assigns[i], "release": releases[i]} {
			unit := what + "-" + s.name() + "-ms"
			b.ReportMetric(measure.Median(took), unit)
			b.ReportMetric(measure.Quantile(took, 0.25), unit+"-q1")
			b.ReportMetric(measure.Quantile(took, 0.75), unit+"-q3")
		}
		s.counts().report(b, s.name())
	}
	b.ReportMetric(0, "ns/op")
}

// functionSide assigns and releases a function in one way.
type functionSide interface {
	name() string
	// cycle gives a function to an owner and a machine, and takes it back. It returns how long each took, in ms.
	cycle(round int) (assign, release float64)
	// counts are of the latest cycle.
	counts() functionCounts
}

// functionCounts are calls to the kernel that write and that read, and syncs of the ledger.
type functionCounts struct{ assign, release callCounts }

type callCounts struct{ writes, reads, syncs int }

func (c functionCounts) report(b *testing.B, name string) {
	if name == "in-memory" { // it counts what the one on disk does
		return
	}
	for what, n := range map[string]callCounts{"assign": c.assign, "release": c.release} {
		b.ReportMetric(float64(n.writes), what+"-"+name+"-kernel-writes")
		b.ReportMetric(float64(n.reads), what+"-"+name+"-kernel-reads")
		b.ReportMetric(float64(n.syncs), what+"-"+name+"-syncs")
	}
}

func (c callCounts) since(before callCounts) callCounts {
	return callCounts{c.writes - before.writes, c.reads - before.reads, c.syncs - before.syncs}
}

// counted counts calls to the model.
type counted struct {
	*modelhost.Host
	calls callCounts
}

func (c *counted) ReadFile(name string) (string, error) {
	c.calls.reads++
	return c.Host.ReadFile(name)
}

func (c *counted) Readlink(name string) (string, error) {
	c.calls.reads++
	return c.Host.Readlink(name)
}

func (c *counted) Glob(pattern string) ([]string, error) {
	c.calls.reads++
	return c.Host.Glob(pattern)
}

func (c *counted) VFs(netdev string) (map[int]sriov.Report, error) {
	c.calls.reads++
	return c.Host.VFs(netdev)
}

func (c *counted) Eswitch(pf string) (string, error) {
	c.calls.reads++
	return c.Host.Eswitch(pf)
}

func (c *counted) GroupInUse(group string) (bool, error) {
	c.calls.reads++
	return c.Host.GroupInUse(group)
}

func (c *counted) Addressed(netdev string) (bool, error) {
	c.calls.reads++
	return c.Host.Addressed(netdev)
}

func (c *counted) WriteFile(name, text string) error {
	c.calls.writes++
	return c.Host.WriteFile(name, text)
}

func (c *counted) SetVF(netdev string, index int, s sriov.Setting, to sriov.Report) error {
	c.calls.writes++
	return c.Host.SetVF(netdev, index, s, to)
}

const benchVFs = 7

func newCounted(b *testing.B) *counted {
	b.Helper()
	h := &counted{Host: modelhost.New(modelhost.Config{PCI: pf, Kind: modelhost.IGB, TotalVFs: benchVFs})}
	if err := errors.Join(h.WriteFile(device("sriov_drivers_autoprobe"), "0"), h.WriteFile(device("sriov_numvfs"), fmt.Sprint(benchVFs))); err != nil {
		b.Fatal(err)
	}
	return h
}

func device(file string) string { return "/sys/bus/pci/devices/" + pf + "/" + file }

// managed is the node's manager of functions.
type managed struct {
	b      *testing.B
	called string
	h      *counted
	m      *sriov.Manager
	last   functionCounts
}

func newManaged(b *testing.B, called, below string) *managed {
	b.Helper()
	dir, err := os.MkdirTemp(below, "functions")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &managed{b: b, called: called, h: newCounted(b)}
	if s.m, err = sriov.Open(sriov.Config{Host: s.h, Dir: dir}); err != nil {
		b.Fatal(err)
	}
	for i := range benchVFs { // a function without a past is reset before its first owner
		s.cycle(-1 - i)
	}
	return s
}

func (s *managed) name() string           { return s.called }
func (s *managed) counts() functionCounts { return s.last }

func (s *managed) calls() callCounts {
	c := s.h.calls
	c.syncs = s.m.Syncs()
	return c
}

func (s *managed) cycle(round int) (assign, release float64) {
	index := (round%benchVFs + benchVFs) % benchVFs
	who, ctx := owner(fmt.Sprint("a", round)), s.b.Context()
	before, begun := s.calls(), time.Now()
	_, err := s.m.Assign(ctx, who, vf(index), ethernet(index))
	if err == nil {
		_, err = s.m.Bind(ctx, who, vf(index), fabric.DriverVFIO)
	}
	between, assigned := s.calls(), time.Now()
	if err = errors.Join(err, s.m.Release(ctx, who, vf(index))); err != nil {
		s.b.Fatal(err)
	}
	released := time.Now()
	s.last = functionCounts{between.since(before), s.calls().since(between)}
	return assigned.Sub(begun).Seconds() * 1e3, released.Sub(assigned).Seconds() * 1e3
}

// byHand is a script that knows the adapter.
type byHand struct {
	b        *testing.B
	h        *counted
	netdev   string
	function [benchVFs]string
	last     functionCounts
}

func newByHand(b *testing.B) *byHand {
	b.Helper()
	s := &byHand{b: b, h: newCounted(b)}
	names, err := s.h.Glob(device("net/*"))
	if err != nil || len(names) != 1 {
		b.Fatalf("interfaces %q: %v", names, err)
	}
	s.netdev = path.Base(names[0])
	for i := range s.function {
		if s.function[i], err = s.h.Readlink(device(fmt.Sprint("virtfn", i))); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func (s *byHand) name() string           { return "by-hand" }
func (s *byHand) counts() functionCounts { return s.last }

func (s *byHand) cycle(round int) (assign, release float64) {
	index := round % benchVFs
	want := ethernet(index)
	to := sriov.Report{MAC: want.MAC, VLAN: want.VLAN, MaxMbps: want.MaxMbps}
	at := "/sys/bus/pci/devices/" + s.function[index]
	changed := []sriov.Setting{sriov.SettingMAC, sriov.SettingVLAN, sriov.SettingRate}
	before, begun := s.h.calls, time.Now()
	s.set(index, to, changed)
	s.write(at+"/driver_override", "vfio-pci\n")
	s.write("/sys/bus/pci/drivers_probe", s.function[index])
	between, assigned := s.h.calls, time.Now()
	s.write("/sys/bus/pci/drivers/vfio-pci/unbind", s.function[index])
	s.write(at+"/driver_override", "\n")
	s.write(at+"/reset", "1")
	s.set(index, sriov.Report{}, changed)
	released := time.Now()
	s.last = functionCounts{between.since(before), s.h.calls.since(between)}
	if got := s.h.Truth(pf, index); got.MAC != "" || got.VLAN != 0 || got.Driver != "" {
		s.b.Fatalf("by hand, a free function is %+v", got)
	}
	return assigned.Sub(begun).Seconds() * 1e3, released.Sub(assigned).Seconds() * 1e3
}

func (s *byHand) set(index int, to sriov.Report, settings []sriov.Setting) {
	for _, setting := range settings {
		if err := s.h.SetVF(s.netdev, index, setting, to); err != nil {
			s.b.Fatal(err)
		}
	}
}

func (s *byHand) write(name, text string) {
	if err := s.h.WriteFile(name, text); err != nil {
		s.b.Fatal(err)
	}
}
