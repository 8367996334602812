// Package rapl reads the energy counters of processors by Linux's power capping framework.
//
// Zones are folders below /sys/class/powercap with the files name, energy_uj and max_energy_range_uj (Documentation/power/powercap/powercap.rst).
// Counters wrap at their range, and begin anew when the driver is loaded again. The package only reads. Start with Open.
package rapl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/energy"
)

// DefaultTree is where Linux has the zones.
const DefaultTree = "/sys/class/powercap"

// StandInFile marks a tree that is no hardware's. Its text says what it is.
const StandInFile = "stand-in"

// mostWatts bounds what a zone can consume, unless the zone itself names a higher limit: a wrap that would need more is a counter that began anew.
const mostWatts = 1000

// maxZones bounds how many zones are read.
const maxZones = 256

// Reader reads the counters of a tree. It is for one goroutine.
type Reader struct {
	tree  string
	now   func() time.Time
	zones []*zone
	// at is when the counters were read last, zero before.
	at       time.Time
	breaks   int64
	modelled string
}

// zone is a counter with what it has counted since it was opened.
type zone struct {
	dir, name string
	counted   bool
	rangeUJ   int64
	watts     int64
	last      int64
	total     int64
}

// Open returns a reader of a tree; nothing is read yet. now is read for differences; nil: time.Now, which is monotonic.
func Open(tree string, now func() time.Time) *Reader {
	if now == nil {
		now = time.Now
	}
	return &Reader{tree: tree, now: now}
}

// Kind implements energy.Source.
func (r *Reader) Kind() api.EnergySource { return api.EnergyRAPL }

// Scope implements energy.Source.
func (r *Reader) Scope() string { return "processors and their memory" }

// Read implements energy.Source. A counter that began anew, or may have wrapped more than once, is a break: what it counted meanwhile is not known.
func (r *Reader) Read(context.Context) (energy.Reading, error) {
	if r.zones == nil {
		if err := r.open(); err != nil {
			return energy.Reading{}, err
		}
	}
	now := r.now()
	values := make([]int64, len(r.zones))
	for i, z := range r.zones {
		var err error
		if values[i], err = number(filepath.Join(z.dir, "energy_uj")); err != nil {
			r.lose()
			return energy.Reading{}, unreadable(err)
		}
	}
	broken := false
	for i, z := range r.zones {
		if !r.at.IsZero() && !z.count(values[i], now.Sub(r.at)) {
			broken = true
		}
		z.last = values[i]
	}
	if broken {
		r.breaks++
	}
	r.at = now
	return r.reading(), nil
}

// reading is what the zones have counted.
func (r *Reader) reading() energy.Reading {
	c := &energy.Counter{Breaks: r.breaks}
	for _, z := range r.zones {
		c.Domains = append(c.Domains, energy.Domain{Name: z.name, Microjoules: z.total, Counted: z.counted})
		if z.counted {
			c.Microjoules += z.total
		}
	}
	return energy.Reading{Counter: c, Modelled: r.modelled}
}

// lose forgets where the counters stood: zones may come and go with a processor.
func (r *Reader) lose() {
	r.zones, r.at = nil, time.Time{}
	r.breaks++
}

// count adds what a counter has counted since it was read last, and reports whether that is known. The rest of the range is added for a wrap, if that
// much energy can have been used in the time.
func (z *zone) count(value int64, since time.Duration) bool {
	most := int64(float64(z.watts) * since.Seconds() * 1e6)
	if z.rangeUJ > 0 && most >= z.rangeUJ {
		return false // it may have wrapped any number of times
	}
	used := value - z.last
	if used < 0 {
		used += z.rangeUJ
		if used < 0 || used > most {
			return false
		}
	}
	z.total += used
	return true
}

// open finds the zones.
func (r *Reader) open() error {
	entries, err := os.ReadDir(r.tree)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the zones of RAPL can't be listed: %w", err)
	}
	var zones []*zone
	names := map[string]int{}
	for _, e := range entries {
		// intel-rapl is the control type of AMD's processors, too. intel-rapl-mmio has the same counters again.
		if !strings.HasPrefix(e.Name(), "intel-rapl:") || len(zones) == maxZones {
			continue
		}
		z, err := openZone(filepath.Join(r.tree, e.Name()))
		if err != nil {
			return unreadable(err)
		}
		names[z.name]++
		if n := names[z.name]; n > 1 {
			z.name += "#" + strconv.Itoa(n) // each package has a "core"
		}
		zones = append(zones, z)
	}
	if !slices.ContainsFunc(zones, func(z *zone) bool { return z.counted }) {
		return fmt.Errorf("%s has no processor's counter: the kernel has no driver for it (intel_rapl_msr), or this is a virtual machine, whose host keeps the counters", r.tree)
	}
	r.modelled = ""
	if text, err := os.ReadFile(filepath.Join(r.tree, StandInFile)); err == nil {
		r.modelled = strings.TrimSpace(string(text))
		if r.modelled == "" {
			r.modelled = "a stand-in for counters"
		}
	}
	r.zones = zones
	return nil
}

// openZone reads what a zone says of itself.
func openZone(dir string) (*zone, error) {
	text, err := os.ReadFile(filepath.Join(dir, "name"))
	if err != nil {
		return nil, err
	}
	z := &zone{dir: dir, name: strings.TrimSpace(string(text)), watts: mostWatts}
	if z.rangeUJ, err = number(filepath.Join(dir, "max_energy_range_uj")); err != nil {
		return nil, err
	}
	// A package has its cores and its graphics, and not its memory. psys is the whole platform, packages included, and few machines have it.
	z.counted = strings.HasPrefix(z.name, "package-") || z.name == "dram"
	if limit, err := number(filepath.Join(dir, "constraint_0_max_power_uw")); err == nil {
		z.watts = max(z.watts, 2*limit/1e6) // peaks go beyond the limit, which is a mean
	}
	return z, nil
}

func number(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s holds %q instead of a number", file, strings.TrimSpace(string(text)))
	}
	return n, nil
}

// unreadable says in words why a counter can't be read.
func unreadable(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root may read the processors' counters, since they leak what programs compute (CVE-2020-8694); run the agent as root: %w", err)
	case errors.Is(err, syscall.ENODATA):
		return fmt.Errorf("the processor returned no count: %w", err)
	default:
		return fmt.Errorf("the processors' counters can't be read: %w", err)
	}
}
