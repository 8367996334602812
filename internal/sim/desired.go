package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// files names the generated files of a cluster's members as of a revision of its record.
type files struct {
	revision int64
	digest   string
}

// filesOf names the files that the members of a cluster should have: who is in it, and where.
func (l *leader) filesOf(name string) string {
	e := l.w.store.clusters[name]
	if known, ok := l.files[name]; ok && known.revision == e.recordRevision {
		return known.digest
	}
	var hosts []string
	for _, a := range l.w.store.assignments(e.record) {
		if a.releasedAt == nil && !a.Spare {
			hosts = append(hosts, fmt.Sprintf("%s=%s", a.Member, a.Address))
		}
	}
	slices.Sort(hosts)
	digest := strings.Join(hosts, " ")
	l.files[name] = files{revision: e.recordRevision, digest: digest}
	return digest
}

// sendDesired tells a node's agent all it should have, when that has changed since it was last told.
func (l *leader) sendDesired(n *node) {
	s := l.states[n.record.Name]
	if s.conn == nil || l.over || s.looked == l.w.store.revision {
		return
	}
	s.looked = l.w.store.revision
	d := l.desiredOf(n.record.Name)
	if s.sent != nil && maps.Equal(s.sent.members, d.members) && maps.EqualFunc(s.sent.networks, d.networks, network.equal) {
		return
	}
	s.sent = &d
	s.conn.tell(func(a *agent) { a.obey(d) })
}

func (n network) equal(o network) bool {
	return maps.Equal(n.ports, o.ports) && maps.Equal(n.peers, o.peers)
}

// desiredOf is all that should be on a node.
func (l *leader) desiredOf(node string) desired {
	w, s := l.w, l.w.store
	d := desired{
		epoch: lifecycle.Epoch{Term: l.term, Revision: s.revision}, members: map[string]wanted{}, networks: map[string]network{},
	}
	for _, name := range s.names() {
		r := s.clusters[name].record
		if r == nil {
			continue
		}
		all := s.assignments(r)
		if !slices.ContainsFunc(all, func(a held) bool { return a.Node == node && !a.clean && !a.Spare }) {
			continue
		}
		net := network{ports: map[string]bool{}, peers: map[string]bool{}}
		for _, a := range all {
			if a.clean || a.Spare && w.cfg.Without != GuardSpare {
				continue
			}
			release := a.releasedAt != nil
			if a.Node == node {
				d.members[a.ID] = l.wanted(r, a.Assignment, release)
				net.ports[a.ID] = !release
			} else if !release || w.cfg.Without == GuardFence {
				net.peers[a.Node] = true
			}
		}
		d.networks[r.UID] = net
	}
	for _, q := range s.quarantined() {
		if q.Assignment.Node == node {
			d.members[q.Assignment.ID] = wanted{
				DesiredMember: lifecycle.DesiredMember{Generation: q.Assignment.Generation, Release: true, Grace: time.Second},
				cluster:       q.Assignment.ClusterUID, name: q.Assignment.Member,
			}
		}
	}
	return d
}

func (l *leader) wanted(r *api.ClusterRecord, a *api.Assignment, release bool) wanted {
	want := wanted{
		DesiredMember: lifecycle.DesiredMember{Generation: a.Generation, Release: release}, cluster: a.ClusterUID, name: a.Member,
	}
	if release {
		want.Grace = time.Second
		return want
	}
	want.Paused = lifecycle.Frozen(r.Phase)
	want.files = l.filesOf(r.Name)
	return want
}
