// Package openvswitch is the control of an Open vSwitch, by its database (OVSDB, RFC 7047).
//
// A port in a network is an access port: vlan_mode access, and the VLAN as its tag. A port in none is a trunk of one VLAN that no other port has, since a
// port without a tag would carry all VLANs. The newest epoch is in the bridge's external_ids, and each change is one transaction that waits for the epoch
// it was decided by: what a former leader's server still sends changes nothing. The package must never touch a port that it was not given. Start with
// Switch.
//
// Columns are those of ovs-vswitchd.conf.db(5).
package openvswitch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// epochKey is where the newest epoch is in the external_ids of the bridge.
const epochKey = "nearmetal-epoch"

// The values of column vlan_mode.
const (
	modeAccess = "access"
	modeTrunk  = "trunk"
)

// Switch is one bridge of an Open vSwitch. It implements ethernet.Switch.
type Switch struct{ cfg ethernet.SwitchSettings }

var _ ethernet.Switch = (*Switch)(nil)

// New makes the control of a switch. It asks nothing of it.
func New(cfg ethernet.SwitchSettings) *Switch { return &Switch{cfg} }

// maxTries bounds how often a change is decided anew since somebody else changed the bridge's external_ids.
const maxTries = 5

// Apply implements ethernet.Switch. It returns when the change is on the disk of the switch's database; ovs-vswitchd follows.
func (s *Switch) Apply(ctx context.Context, epoch lifecycle.Epoch, ports map[string]ethernet.State) error {
	for try := 1; ; try++ {
		now, err := s.read(ctx)
		if err != nil {
			return err
		}
		had, err := epochOf(now.bridge)
		if err != nil {
			return err
		}
		if err := had.Accept(epoch); err != nil {
			return fmt.Errorf("%w: %w", site.ErrStale, err)
		}
		changes := s.plan(now, ports)
		if len(changes) == 0 && had == epoch {
			return nil
		}
		_, err = s.transact(ctx, s.guarded(now, epoch, changes)...)
		if !errors.Is(err, errGuard) || try == maxTries {
			return err
		}
	}
}

// guarded are changes that take effect only while the bridge's external_ids are those by which they were decided.
func (s *Switch) guarded(now tables, epoch lifecycle.Epoch, changes []operation) []operation {
	bridge := []any{[]any{"_uuid", "==", now.bridge.ID}}
	all := []operation{{
		"op": "wait", "timeout": 0, "table": "Bridge", "where": bridge, "columns": []string{"external_ids"}, "until": "==",
		"rows": []any{map[string]any{"external_ids": now.bridge.ExternalIDs}},
	}, {
		"op": "mutate", "table": "Bridge", "where": bridge, "mutations": []any{
			[]any{"external_ids", "delete", set[string]{epochKey}}, []any{"external_ids", "insert", dictionary{epochKey: epochText(epoch)}},
		},
	}}
	return append(append(all, changes...),
		operation{"op": "mutate", "table": "Open_vSwitch", "where": []any{}, "mutations": []any{[]any{"next_cfg", "+=", 1}}},
		operation{"op": "commit", "durable": true})
}

// plan is what has to be changed of ports, in order of their names. A port that the bridge lacks is left out.
func (s *Switch) plan(now tables, ports map[string]ethernet.State) (changes []operation) {
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		row, there := now.ports[name]
		if !there {
			continue
		}
		want := s.columns(ports[name])
		if sameColumns(row, want) {
			continue
		}
		changes = append(changes, operation{
			"op": "update", "table": "Port", "where": []any{[]any{"_uuid", "==", row.ID}},
			"row": map[string]any{"vlan_mode": want.Mode, "tag": want.Tag, "trunks": want.Trunks, "protected": want.Protected},
		})
	}
	return changes
}

// columns are those of a port in a state. A port without a network is protected, too, for the sake of switches that carry its VLAN nevertheless.
func (s *Switch) columns(want ethernet.State) portRow {
	if want.VLAN == 0 {
		return portRow{Mode: set[string]{modeTrunk}, Trunks: set[int]{s.cfg.Parking()}, Protected: true}
	}
	return portRow{Mode: set[string]{modeAccess}, Tag: set[int]{want.VLAN}, Protected: want.Protected}
}

func sameColumns(a, b portRow) bool {
	return slices.Equal(a.Mode, b.Mode) && slices.Equal(a.Tag, b.Tag) && slices.Equal(a.Trunks, b.Trunks) && a.Protected == b.Protected
}

// Read implements ethernet.Switch. A port counts as read only when ovs-vswitchd has carried out all that the database asks for.
func (s *Switch) Read(ctx context.Context, ports []string) (ethernet.Reading, error) {
	now, err := s.read(ctx)
	if err != nil {
		return ethernet.Reading{}, err
	}
	r := ethernet.Reading{Ports: map[string]ethernet.State{}, Unknown: map[string]string{}}
	if r.Epoch, err = epochOf(now.bridge); err != nil {
		return ethernet.Reading{}, err
	}
	for _, name := range ports {
		state, problem := s.stateOf(now, name)
		if now.root.CurCfg < now.root.NextCfg {
			problem = fmt.Sprintf("ovs-vswitchd has carried out change %d of %d", now.root.CurCfg, now.root.NextCfg)
		}
		if problem != "" {
			r.Unknown[name] = problem
			continue
		}
		r.Ports[name] = state
	}
	return r, nil
}

// stateOf is what a port is by the tables, or why that can't be told.
func (s *Switch) stateOf(now tables, name string) (state ethernet.State, problem string) {
	row, there := now.ports[name]
	if !there {
		return state, fmt.Sprintf("bridge %s has no port of this name", s.cfg.Bridge)
	}
	for _, id := range row.Interfaces {
		i := now.interfaces[id.ID]
		if len(i.Error) > 0 {
			return state, "the switch says: " + i.Error[0]
		}
		if len(i.OFPort) != 1 || i.OFPort[0] < 0 {
			return state, "the switch does not use it"
		}
	}
	switch {
	case sameColumns(row, s.columns(state)):
		return state, ""
	case slices.Equal(row.Mode, set[string]{modeAccess}) && len(row.Tag) == 1 && row.Tag[0] != 0:
		return ethernet.State{VLAN: row.Tag[0], Protected: row.Protected}, ""
	case len(row.Mode) == 0 && len(row.Tag) == 1 && row.Tag[0] != 0 && len(row.Trunks) == 0: // which is an access port, too
		return ethernet.State{VLAN: row.Tag[0], Protected: row.Protected}, ""
	default:
		return state, fmt.Sprintf("somebody else has made it a port of mode %s, with tag %v and trunks %v", cmp.Or(first(row.Mode), "trunk"), row.Tag, row.Trunks)
	}
}

func first(s set[string]) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

func (s *Switch) read(ctx context.Context) (tables, error) {
	results, err := s.transact(ctx, s.selects()...)
	if err != nil {
		return tables{}, err
	}
	return s.tablesOf(results)
}

func epochText(e lifecycle.Epoch) string { return fmt.Sprintf("%d.%d", e.Term, e.Revision) }

// epochOf is zero for a bridge that nobody has managed yet.
func epochOf(b bridgeRow) (e lifecycle.Epoch, err error) {
	text, is := b.ExternalIDs[epochKey]
	if !is {
		return e, nil
	}
	if n, err := fmt.Sscanf(text, "%d.%d", &e.Term, &e.Revision); err != nil || n != 2 || epochText(e) != text {
		return e, fmt.Errorf("external_ids:%s of the bridge is %q, which is no epoch; without it a former leader's orders can't be refused", epochKey, text)
	}
	return e, nil
}
