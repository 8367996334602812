package container

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// ownDevice is a member's interface on its cluster's own network.
const ownDevice = "eth0"

// detour is what a member's packets take while they have a condition. It holds the member's network namespace.
type detour struct {
	*condition.Detour
	space netns.Handle
	// init is the first process of the member that it was made for.
	init int
}

func (w *detour) end() error { return errors.Join(w.Close(), w.space.Close()) }

// SetCondition has a member's packets take a detour through this process, or go straight. A detour is measured by itself: that packets take it is for
// the kernel's rules.
func (d *Driver) SetCondition(ctx context.Context, m driver.Member) error {
	if err := d.setCondition(ctx, m); errors.Is(err, driver.ErrNotFound) {
		return err
	} else if err != nil {
		return fmt.Errorf("the network condition of member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

func (d *Driver) setCondition(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	h, err := d.host()
	if err != nil {
		return err
	}
	if _, err := d.recall(id); err != nil {
		return err
	}
	seen := d.look(h, id)
	if !seen.alive() {
		return errors.Join(fmt.Errorf("the member is %s", seen.state), d.endDetour(id))
	}
	has := d.detourOf(id)
	if has != nil && (has.init != seen.init || m.Condition == nil) {
		if err := d.endDetour(id); err != nil {
			return err
		}
		has = nil
	}
	switch {
	case m.Condition == nil:
		return d.straighten(h, id, seen.init)
	case has != nil:
		err = has.Change(conditionOf(m))
	default:
		has, err = d.openDetour(h, m, seen.init)
	}
	if err != nil {
		return errors.Join(err, d.endDetour(id))
	}
	failpoint.Hit("container.after-detour")
	if err := has.Verify(ctx, triesOf(m.Condition)); err != nil {
		return errors.Join(err, d.endDetour(id))
	}
	return nil
}

// openDetour makes a member's detour, in place of one that an ended process left.
func (d *Driver) openDetour(h *host, m driver.Member, init int) (*detour, error) {
	space, err := networkOf(h, m.Assignment.ID, init)
	if err != nil {
		return nil, err
	}
	var inside []netip.Prefix
	for _, n := range m.Networks {
		inside = append(inside, n.Prefix)
	}
	made, err := condition.OpenDetour(space, condition.DetourConfig{Device: ownDevice, Inside: inside, Condition: conditionOf(m)})
	if err != nil {
		return nil, errors.Join(err, space.Close())
	}
	w := &detour{Detour: made, space: space, init: init}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.Join(os.ErrClosed, w.end())
	}
	d.detours[m.Assignment.ID] = w
	return w, nil
}

// straighten takes away what an ended process left of a detour.
func (d *Driver) straighten(h *host, id string, init int) error {
	space, err := networkOf(h, id, init)
	if err != nil {
		return err
	}
	return errors.Join(condition.ClearDetour(space), space.Close())
}

// networkOf opens the network namespace of a member's first process.
func networkOf(h *host, id string, init int) (netns.Handle, error) {
	space, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", init))
	if err != nil {
		return netns.Handle{}, err
	}
	if !h.cgroups.Contains(id, init) {
		return netns.Handle{}, errors.Join(errors.New("the member has just ended"), space.Close())
	}
	return space, nil
}

func (d *Driver) detourOf(id string) *detour {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.detours[id]
}

// endDetour ends a member's detour, if it has one. Until then the kernel keeps the member's network namespace.
func (d *Driver) endDetour(id string) error {
	d.mu.Lock()
	has := d.detours[id]
	delete(d.detours, id)
	d.mu.Unlock()
	if has == nil {
		return nil
	}
	return has.end()
}

// endDetours ends all detours. The caller holds mu.
func (d *Driver) endDetours() error {
	var errs []error
	for id, has := range d.detours {
		delete(d.detours, id)
		errs = append(errs, has.end())
	}
	return errors.Join(errs...)
}

// conditionOf is a member's condition in fractions. Members draw their packets' fates apart from each other.
func conditionOf(m driver.Member) condition.Condition {
	c := m.Condition
	return condition.Condition{
		Delay: c.Delay.Std(), Jitter: c.Jitter.Std(), Loss: c.Loss / 100, Duplicate: c.Duplicate / 100, Corrupt: c.Corrupt / 100, Reorder: c.Reorder / 100,
		BitsPerSecond: int64(c.Rate), Seed: uint64(c.Seed) + uint64(m.Assignment.Rank)<<40,
	}
}

// triesOf is how many echoes a condition is measured with: of fewer, it could happen that three don't come back.
func triesOf(c *api.NetworkCondition) int {
	comes := (1 - c.Loss/100) * (1 - c.Corrupt/100)
	return int(math.Ceil(20 / (comes * comes)))
}

var _ driver.Conditioner = (*Driver)(nil)
