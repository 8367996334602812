package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// keepFabrics runs the keepers of this leadership; what it returns ends them.
func (l *leader) keepFabrics(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, keeper := range l.cfg.Fabrics {
		running.Go(func() { keeper.Run(ctx) })
		if chart := keeper.Chart(); chart != nil {
			running.Go(func() { l.passOn(ctx, chart.Changed()) })
		}
		running.Go(func() { l.passOn(ctx, keeper.Changed()) })
	}
	return func() { cancel(); running.Wait() }
}

// passOn makes a pass whenever a fabric was read back otherwise than before.
func (l *leader) passOn(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			select {
			case l.readBack <- struct{}{}:
			default:
			}
		}
	}
}

// tellFabrics gives every fabric its networks as far as they changed.
func (l *leader) tellFabrics(view *state.View) {
	changed := l.isolate(view)
	if len(l.cfg.Fabrics) == 0 || l.fabricsTold && !l.desired.fabricsDirty && !changed {
		return
	}
	networks := networksOn(l.desired.fabricPorts())
	for name, keeper := range l.cfg.Fabrics {
		all := networks[name]
		if ports := l.isolated[name]; len(ports) > 0 {
			all = append(all, site.Network{Number: keeper.Switching().Isolated(), Ports: ports})
		}
		keeper.Set(lifecycle.Epoch{Term: l.writer.Term(), Revision: view.Revision}, all)
	}
	l.fabricsTold, l.desired.fabricsDirty = true, false
}

// isolate finds the provisioning ports of the machines that tenants have. It reports whether they are others than before.
func (l *leader) isolate(view *state.View) (changed bool) {
	seen := [4]any{identity(view.Nodes), identity(view.Clusters), identity(view.Quarantines), view.Offers}
	if len(l.cfg.Offers.Switches) == 0 || seen == l.isolatedSeen {
		return false
	}
	l.isolatedSeen = seen
	isolated := situation.Isolated(view, l.cfg.Offers)
	changed = !maps.EqualFunc(isolated, l.isolated, slices.Equal[[]site.Port])
	l.isolated = isolated
	return changed
}

// touchFabrics lets all look again at the members that have ports on fabrics.
func (l *leader) touchFabrics() {
	nodes := map[string]bool{}
	for _, c := range l.desired.clusters {
		for _, p := range c.ports {
			nodes[p.node] = true
		}
	}
	for node := range nodes {
		l.cfg.Agents.Touch(node)
	}
}

// admits returns why a fabric could not carry out what is to be placed, beside all that is desired of it; nil when all fabrics could. Placed are
// assignments of which nothing is stored yet, on these networks. What else was placed in this pass does not matter: a place is one member's.
func (p *pass) admits(placed []api.Assignment, on []api.Network) error {
	network := func(uid string) *api.Network {
		if i := slices.IndexFunc(on, func(n api.Network) bool { return n.UID == uid }); i >= 0 {
			return &on[i]
		}
		return p.view.Network(uid)
	}
	fresh := fabricPorts(network, placed)
	if len(fresh) == 0 {
		return nil
	}
	all := networksOn(slices.Concat(p.desired.fabricPorts(), fresh))
	for _, name := range slices.Sorted(maps.Keys(p.cfg.Fabrics)) {
		if !slices.ContainsFunc(fresh, func(port fabricPort) bool { return port.fabric == name }) {
			continue
		}
		if err := p.cfg.Fabrics[name].Check(all[name]); err != nil {
			return fmt.Errorf("fabric %s: %w", name, err)
		}
	}
	return nil
}

// fabricPorts are the ports that fabrics are to have.
func (d *desiredStates) fabricPorts() []fabricPort {
	var all []fabricPort
	for _, c := range d.clusters {
		all = append(all, c.ports...)
	}
	return all
}

// networksOn are the networks that each fabric is to have for ports, in order.
func networksOn(list []fabricPort) map[string][]site.Network {
	ports, partitions := map[string]map[int][]site.Port{}, map[int]api.Partition{}
	for _, p := range list {
		if ports[p.fabric] == nil {
			ports[p.fabric] = map[int][]site.Port{}
		}
		ports[p.fabric][p.network] = append(ports[p.fabric][p.network], site.Port{At: p.at, Limited: p.limited})
		partitions[p.network] = p.partition
	}
	all := map[string][]site.Network{}
	for fabric, byNumber := range ports {
		for _, number := range slices.Sorted(maps.Keys(byNumber)) {
			list := byNumber[number]
			slices.SortFunc(list, func(a, b site.Port) int { return cmp.Compare(a.At, b.At) })
			all[fabric] = append(all[fabric], site.Network{Number: number, Partition: partitions[number], Ports: slices.Compact(list)})
		}
	}
	return all
}
