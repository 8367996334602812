package sriov_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov/modelhost"
)

// quickSteps is how many random steps a test run makes; NEARMETAL_FUNCTION_STEPS=100000 makes more, and NEARMETAL_FUNCTION_SEED repeats a run.
const quickSteps = 600

// tenant is an assignment as the control plane sees it.
type tenant struct {
	owner    fabric.FunctionOwner
	f        fabric.Function
	settings fabric.FunctionSettings
	driver   string
	// using: its assign succeeded, its release did not begin, and the node lived since. disturbed: the adapter forgot its settings.
	using, disturbed bool
}

// world is the control plane, and what it must never see.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	h      *modelhost.Host
	m      *sriov.Manager
	again  func() *sriov.Manager
	kinds  map[string]modelhost.Config
	pfs    []string
	holds  map[string]*tenant
	past   []*tenant
	acting *tenant
	audits bool
	wrong  []string
	count  int
	// steps that succeeded, by name.
	done map[string]int
}

func newWorld(t *testing.T, seed uint64) *world {
	configs := []modelhost.Config{
		{PCI: "0000:3b:00.0", Kind: modelhost.IGB, TotalVFs: 7},
		{PCI: "0000:5e:00.0", Kind: modelhost.MLX5, TotalVFs: 63},
		{PCI: "0000:86:00.0", Kind: modelhost.MLX4, TotalVFs: 63, AtLoad: 63},
		{PCI: "0000:af:00.0", Kind: modelhost.MLX5Ethernet, TotalVFs: 8},
	}
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), h: modelhost.New(configs...), holds: map[string]*tenant{}, kinds: map[string]modelhost.Config{},
		done: map[string]int{},
	}
	for _, c := range configs {
		w.pfs, w.kinds[c.PCI] = append(w.pfs, c.PCI), c
	}
	w.m, w.again = open(t, w.h)
	w.h.Watch = w.watch
	w.prepare()
	return w
}

// prepare is what an agent does when it starts, and the subnet manager.
func (w *world) prepare() {
	for _, pf := range w.pfs {
		err := w.m.SetCount(w.t.Context(), pf, w.kinds[pf].TotalVFs)
		if err != nil && !errors.Is(err, fabric.ErrFunctionQuarantined) && !errors.Is(err, fabric.ErrFunctionHeld) {
			w.bad("SetCount: %v", err)
		}
	}
	for key := 1; key <= 10; key++ {
		w.h.PKey(w.pfs[2], key, 0x8000|key)
	}
}

func (w *world) bad(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

func key(pf string, index int) string { return fmt.Sprint(pf, " ", index) }

func (n *tenant) key() string {
	index, _ := n.f.Index()
	return key(n.f.Device, index)
}

// watch sees each thing that happens to a function.
func (w *world) watch(e modelhost.Event) {
	holder := w.holds[key(e.PF, e.Index)]
	set := e.What != "reset" && e.What != "unbind" && e.What != "bind"
	if holder != nil && holder.using && holder != w.acting && !(w.audits && set) {
		w.bad("%s of function %d of %s, which %s uses", e.What, e.Index, e.PF, holder.owner.Assignment)
	}
}

// as lets a tenant act, and gives what goes wrong in the program back as an error.
func (w *world) as(n *tenant, act func() error) error {
	w.acting = n
	defer func() { w.acting = nil }()
	return act()
}

func (w *world) newTenant() *tenant {
	pf := w.pfs[w.rng.IntN(len(w.pfs))]
	config := w.kinds[pf]
	w.count++
	n := &tenant{owner: fabric.FunctionOwner{Assignment: fmt.Sprint("a", w.count), Generation: int64(1 + w.rng.IntN(3))}}
	n.f = fabric.Function{Kind: api.PortVF, Device: pf, Part: fabric.Part(w.rng.IntN(config.TotalVFs))}
	switch config.Kind {
	case modelhost.MLX4, modelhost.MLX5:
		n.settings = fabric.FunctionSettings{GUID: fmt.Sprintf("0e6d%012x", w.count), PKey: 1 + w.rng.IntN(10)}
	default:
		n.settings = fabric.FunctionSettings{
			MAC:  fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", w.count>>24&0xff, w.count>>16&0xff, w.count>>8&0xff, w.count&0xff),
			VLAN: 1 + w.rng.IntN(4094), MaxMbps: w.rng.IntN(1000), SpoofCheck: w.rng.IntN(2) == 0, Trusted: w.rng.IntN(2) == 0,
		}
	}
	n.driver = []string{fabric.DriverVFIO, fabric.DriverNative}[w.rng.IntN(2)]
	return n
}

func (w *world) assign() {
	n := w.newTenant()
	holder := w.holds[n.key()]
	if holder != nil { // the control plane would not; the node must not, if the holder's order reached it
		if !slices.ContainsFunc(w.m.Holdings(), func(h sriov.Holding) bool { return h.Owner.Assignment == holder.owner.Assignment }) {
			return
		}
		if err := w.as(n, func() error { _, err := w.m.Assign(w.t.Context(), n.owner, n.f, n.settings); return err }); err == nil {
			w.bad("%s was assigned to %s, and is held by %s", n.f, n.owner.Assignment, holder.owner.Assignment)
		}
		return
	}
	w.holds[n.key()] = n // written down first, as by the leader
	w.start(n)
}

// start assigns and binds, or repeats that.
func (w *world) start(n *tenant) {
	err := w.as(n, func() error {
		if _, err := w.m.Assign(w.t.Context(), n.owner, n.f, n.settings); err != nil {
			return err
		}
		_, err := w.m.Bind(w.t.Context(), n.owner, n.f, n.driver)
		return err
	})
	if n.using = err == nil; n.using {
		index, _ := n.f.Index()
		w.h.Use(n.f.Device, index, n.owner.Assignment, false)
		n.disturbed = false
		w.done["assign"]++
	}
}

func (w *world) some(using bool) *tenant {
	var all []*tenant
	for _, n := range w.holds {
		if !using || n.using {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *tenant) int {
		return len(a.owner.Assignment)*1000 - len(b.owner.Assignment)*1000 + compare(a.owner.Assignment, b.owner.Assignment)
	})
	return all[w.rng.IntN(len(all))]
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

func (w *world) release() {
	n := w.some(false)
	if n == nil {
		return
	}
	n.using = false
	if w.as(n, func() error { return w.m.Release(w.t.Context(), n.owner, n.f) }) == nil {
		delete(w.holds, n.key())
		w.past = append(w.past, n)
		w.done["release"]++
	}
}

// late repeats orders of a former owner.
func (w *world) late() {
	if len(w.past) == 0 {
		return
	}
	n := w.past[max(0, len(w.past)-1-w.rng.IntN(40))]
	ctx := w.t.Context()
	_ = w.as(n, func() error {
		if err := w.m.Release(ctx, n.owner, n.f); err != nil {
			w.bad("a late release of %s: %v", n.owner.Assignment, err)
		}
		if _, err := w.m.Assign(ctx, n.owner, n.f, n.settings); err == nil {
			w.bad("a late assign of %s succeeded", n.owner.Assignment)
		}
		if _, err := w.m.Bind(ctx, n.owner, n.f, fabric.DriverVFIO); err == nil {
			w.bad("a late bind of %s succeeded", n.owner.Assignment)
		}
		if err := w.m.Reset(ctx, n.owner, n.f); err == nil {
			w.bad("a late reset of %s succeeded", n.owner.Assignment)
		}
		return nil
	})
	w.done["late"]++
}

// amid makes the program end amid an operation.
func (w *world) amid() {
	w.h.CrashAfter(1 + w.rng.IntN(120))
	if w.rng.IntN(2) == 0 {
		w.assign()
	} else {
		w.release()
	}
	w.h.Restart()
	w.m = w.again()
	w.done["crash"]++
}

func (w *world) reboot() {
	for _, n := range w.holds {
		n.using = false
	}
	w.acting = nil
	w.h.Reboot()
	synctest.Wait()
	w.m = w.again()
	w.prepare()
	w.done["reboot"]++
}

func (w *world) byHand() {
	pf := w.pfs[w.rng.IntN(len(w.pfs))]
	if w.kinds[pf].Kind == modelhost.MLX4 {
		return
	}
	for _, n := range w.holds {
		if n.f.Device == pf {
			n.using = false // its device is gone
		}
	}
	w.h.CountByHand(pf, w.rng.IntN(w.kinds[pf].TotalVFs+1))
	w.done["by hand"]++
}

func (w *world) resetAdapter() {
	pf := w.pfs[w.rng.IntN(len(w.pfs))]
	for _, n := range w.holds {
		n.disturbed = n.disturbed || n.f.Device == pf
	}
	w.h.ResetAdapter(pf)
	w.audit()
	w.done["adapter reset"]++
}

func (w *world) audit() {
	w.audits = true
	_, err := w.m.Audit(w.t.Context())
	w.audits = false
	if err == nil {
		quarantined := w.m.Quarantines() // nobody looks at these
		for _, n := range w.holds {
			n.disturbed = n.disturbed && slices.ContainsFunc(quarantined, func(q sriov.QuarantinedError) bool { return q.PF == n.f.Device })
		}
	}
}

// counted sets the number of functions as the agent does: refused while one is held.
func (w *world) counted() {
	pf := w.pfs[w.rng.IntN(len(w.pfs))]
	if err := w.m.SetCount(w.t.Context(), pf, w.kinds[pf].TotalVFs); err == nil {
		w.done["count"]++
	}
}

func (w *world) fault() {
	pf := w.pfs[w.rng.IntN(len(w.pfs))]
	texts := []string{"/reset 1", "/unbind", "netlink set " + pf, "drivers_probe", "driver_override", "admin_guids", "pkey_idx", pf + "/sriov_numvfs"}
	text := texts[w.rng.IntN(len(texts))]
	way := w.rng.IntN(10)
	if text == "/reset 1" {
		way = 1 // nobody could see that a reset changed nothing
	}
	switch way {
	case 0:
		w.h.Hang("write " + "/sys/bus/pci/devices/" + pf[:8])
	case 1, 2, 3:
		w.h.Fail(text, 1, unix.EIO)
	default:
		w.h.Ignore(text, 1)
	}
	w.done["fault"]++
}

// step does one random thing.
func (w *world) step() {
	switch n := w.rng.IntN(1000); {
	case n < 400:
		w.assign()
	case n < 750:
		w.release()
	case n < 830:
		w.late()
	case n < 880:
		w.amid()
	case n < 886:
		w.reboot()
	case n < 890:
		w.byHand()
	case n < 900:
		w.resetAdapter()
	case n < 920:
		w.h.Rename(w.pfs[w.rng.IntN(len(w.pfs))])
	case n < 940:
		w.counted()
	case n < 945:
		w.h.Land() // what hung does its work, long after
		synctest.Wait()
	case n < 975:
		w.fault()
	default:
		if t := w.some(true); t != nil { // a restarted agent repeats its orders
			w.start(t)
		}
	}
}

// check compares all functions with what the control plane believes.
func (w *world) check() {
	seen := map[string]string{}
	for _, pf := range w.pfs {
		config := w.kinds[pf]
		for index := range config.TotalVFs {
			truth, n := w.h.Truth(pf, index), w.holds[key(pf, index)]
			if !truth.There {
				if n != nil && n.using {
					w.bad("%s lost its function %s", n.owner.Assignment, n.f)
				}
				continue
			}
			identity := truth.GUID + truth.MAC
			if before := seen[identity]; identity != "" && before != "" {
				w.bad("%s and %s both have address %s", before, key(pf, index), identity)
			}
			seen[identity] = key(pf, index)
			w.checkOne(key(pf, index), truth, n)
		}
	}
}

func (w *world) checkOne(at string, truth modelhost.Truth, n *tenant) {
	var mine []int
	if n != nil && n.settings.PKey != 0 {
		mine = []int{0x8000 | n.settings.PKey}
	}
	if other := slices.DeleteFunc(slices.Clone(truth.PKeys), func(k int) bool { return k == 0xffff || slices.Contains(mine, k) }); len(other) > 0 {
		w.bad("%s can use the partition keys %#x of others", at, other)
	}
	switch {
	case n == nil && truth.Memory != "":
		w.bad("%s is free, and has what %s left in it", at, truth.Memory)
	case n == nil || !n.using:
	case truth.Memory != n.owner.Assignment:
		w.bad("%s was reset under %s: it has %q", at, n.owner.Assignment, truth.Memory)
	case n.disturbed:
	case truth.GUID != n.settings.GUID || truth.MAC != n.settings.MAC || truth.VLAN != n.settings.VLAN:
		w.bad("%s of %s is %+v, not %+v", at, n.owner.Assignment, truth.Report, n.settings)
	case len(mine) > 0 && w.kinds[n.f.Device].Kind == modelhost.MLX4 && !slices.Equal(truth.PKeys, mine):
		w.bad("%s of %s has the partition keys %#x", at, n.owner.Assignment, truth.PKeys)
	}
}

// end releases everything, and finds that nothing was lost.
func (w *world) end() {
	w.reboot()
	for range 3 {
		for _, n := range w.holds {
			n.using = false
			if w.as(n, func() error { return w.m.Release(w.t.Context(), n.owner, n.f) }) == nil {
				delete(w.holds, n.key())
			}
		}
	}
	for _, h := range w.m.Holdings() {
		w.bad("at the end, %s is not free: %s", h.Function, h.Problem)
	}
	for _, pf := range w.pfs {
		for index := range w.kinds[pf].TotalVFs {
			n := w.newTenant()
			for n.f.Device != pf {
				n = w.newTenant()
			}
			n.f.Part = fabric.Part(index)
			w.holds[n.key()] = n
			if w.start(n); !n.using {
				w.bad("at the end, %s was lost", n.f)
			}
		}
	}
	w.check()
}

func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func TestNoFunctionHasTwoOwnersIsLostOrResetUnderItsOwner(t *testing.T) {
	steps, seed := number(t, "NEARMETAL_FUNCTION_STEPS", quickSteps), number(t, "NEARMETAL_FUNCTION_SEED", 1)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, uint64(seed))
		defer w.h.Unhang()
		for i := range steps {
			w.step()
			w.check()
			if len(w.wrong) > 0 {
				t.Fatalf("seed %d, step %d: %s", seed, i, w.wrong[0])
			}
		}
		w.end()
		if len(w.wrong) > 0 {
			t.Fatalf("seed %d, at the end: %s", seed, w.wrong[0])
		}
		for _, name := range []string{"assign", "release", "late", "crash", "fault", "reboot", "by hand", "adapter reset", "count"} {
			if w.done[name] == 0 && steps >= 3000 {
				t.Errorf("%d steps did %q not once: %v", steps, name, w.done)
			}
		}
		t.Logf("seed %d, %d steps: %v", seed, steps, w.done)
	})
}
