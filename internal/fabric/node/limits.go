package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/fabric/shaper"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// limits hold ports to their quality of service, and know whether the node's kernel can. Ports with one are refused where it can't.
type limits struct {
	shaper *shaper.Shaper
	// probe tries everything that limits need, in a network namespace of its own.
	probe func() error

	mu sync.Mutex
	// works: the probe succeeded. It is repeated as long as it does not, since a module may be loaded later.
	works bool
	// why is the last failure.
	why error
}

func newLimits() limits {
	s := shaper.New()
	return limits{shaper: s, probe: func() error { return probeLimits(s) }}
}

// CanShape reports why the kernel can't hold ports to rates and mark their packets, nil if it can. It changes nothing.
func CanShape() error { return newLimits().probe() }

// probeLimits limits a port that leads nowhere.
func probeLimits(s *shaper.Shaper) error {
	space, err := netns.New()
	if err != nil {
		return err
	}
	err = space.Do(func() error {
		const port = "nmprobe"
		for _, name := range []string{plan.ShaperName, port} {
			if err := newIFB(plan.Link{Name: name, MTU: 1500}); err != nil {
				return fmt.Errorf("making a device of kind %s: %w", plan.KindIFB, err)
			}
		}
		if err := s.SetParent(1e9); err != nil {
			return err
		}
		want := shaper.Limit{Class: 16, Min: 1e8, Max: 1e9, In: 1e9, DSCP: "1"}
		if err := s.Set(port, want); err != nil {
			return err
		}
		link, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		state, err := s.Read(map[string]int{port: link.Attrs().Index})
		if err == nil && state.Limits[port] != want {
			err = fmt.Errorf("a limit of %v was read back as %v", plan.Limit(want), plan.Limit(state.Limits[port]))
		}
		return err
	})
	return errors.Join(err, space.Close())
}

// can reports whether the kernel can provide the quality of service of networks. Without any, it is not asked.
func (l *limits) can(ctx context.Context, log *slog.Logger, networks []fabric.Network) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.works || !plan.AnyShaped(networks) {
		return l.works
	}
	why := l.probe()
	if why != nil && l.why == nil {
		log.WarnContext(ctx, "ports with rates or DSCP are refused: the kernel can't provide them", "error", why)
	}
	l.works, l.why = why == nil, why
	return l.works
}

// refusal returns why the kernel can't limit ports, nil if it can.
func (l *limits) refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// read returns what ports are held to, given as index by name.
func (l *limits) read(links map[string]plan.Link, ports map[string]int) (plan.Limits, error) {
	if links[plan.ShaperName].Kind != plan.KindIFB {
		return plan.Limits{}, nil
	}
	state, err := l.shaper.Read(ports)
	if err != nil {
		return plan.Limits{}, err
	}
	seen := plan.Limits{Parent: state.Parent, Classes: state.Classes, Ports: map[string]plan.Limit{}}
	for name, limit := range state.Limits {
		seen.Ports[name] = plan.Limit(limit)
	}
	return seen, nil
}

func (l *limits) setParent(o plan.SetParentRate) error {
	err := l.shaper.SetParent(o.Rate)
	failpoint.Hit("node.after-parent-rate")
	return err
}

// set holds a port to a limit. A port that is gone by then is no error.
func (l *limits) set(port string, limit plan.Limit) error {
	err := l.shaper.Set(port, shaper.Limit(limit))
	failpoint.Hit("node.after-limit")
	if _, gone := netlink.LinkByName(port); isGone(gone) {
		return nil
	}
	return err
}

// clear removes the limits of a port.
func (l *limits) clear(port string) error {
	err := l.shaper.Clear(port)
	failpoint.Hit("node.after-clear-limit")
	if err != nil {
		return err
	}
	if link, err := netlink.LinkByName(port); err == nil && hasSeveralQueues(link) {
		return dropQueueing(port)
	}
	return nil
}

func (l *limits) deleteClass(class uint16) error {
	err := l.shaper.DeleteClass(class)
	failpoint.Hit("node.after-delete-class")
	return err
}

// limit holds a port that has just been made to its limit, in the node's network namespace.
func (f *Fabric) limit(port fabric.Port) error {
	if !port.Shaped() {
		return nil
	}
	name := plan.PortName(port.ID)
	return f.limits.set(name, plan.LimitsOf(fabric.OnBridges(f.applied), f.parentRate)[name])
}
