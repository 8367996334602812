package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
	volumefake "github.com/nearmetal/nearmetal/internal/volume/fake"
)

// limitVolume changes the limit of I/O of a volume.
func (s *site) limitVolume(name, uid string, bytes int64) {
	s.t.Helper()
	_, _, err := s.repo.ChangeVolume(s.t.Context(), name, uid, func(v *api.VolumeIntent, _ []api.VolumeIntent) error {
		v.IOBytesPerSecond = bytes
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// limiting notes what members are held to when their volumes change, and says that their limits may have changed.
type limiting struct {
	*talkative
	remounts chan<- []driver.IOLimit
	changed  chan<- struct{}
}

func (d limiting) Remount(ctx context.Context, m driver.Member) error {
	d.remounts <- d.node.host.IOLimits(m.Assignment.ID)
	return d.talkative.Remount(ctx, m)
}

func (d limiting) LimitIO(ctx context.Context, m driver.Member) error {
	err := d.talkative.LimitIO(ctx, m)
	d.changed <- struct{}{}
	return err
}

func TestMembersAreHeldToTheLimitsOfTheirVolumes(t *testing.T) {
	s := newSite(t)
	n := s.newNode("n1")
	n.volumes = volumefake.NewDisk(1 << 40)
	remounts := make(chan []driver.IOLimit, 100)
	changed := make(chan struct{}, 100)
	n.wrap = func(d driver.Driver) driver.Driver { return limiting{d.(*talkative), remounts, changed} }
	n.start(4)
	for name, limit := range map[string]int64{"data": 8 << 20, "more": 2 << 20} {
		s.createVolume(api.VolumeIntent{Name: name, UID: "uid-" + name, Access: api.VolumeOneWriter, Project: api.DefaultProject, IOBytesPerSecond: limit})
	}
	data, more := api.VolumeAttachment{Name: "data", Path: "/home"}, api.VolumeAttachment{Name: "more"}
	s.createWith("c1", "ada", api.ClusterHome{Kind: api.HomeNone}, data)
	c := s.awaitPhase("c1", api.ClusterReady)
	var ids []string
	for a := range c.Held() {
		ids = append(ids, a.ID)
	}
	of := func(name string, bytes int64) driver.IOLimit {
		return driver.IOLimit{Source: n.volumes.Pool().Dir("uid-"+name, "uc1"), BytesPerSecond: bytes}
	}
	held := func(what string, want ...driver.IOLimit) {
		t.Helper()
		for slices.ContainsFunc(ids, func(id string) bool { return !slices.Equal(n.host.IOLimits(id), want) }) {
			within(t, what+": the members are held to "+strings.Join(limitsText(want), ", "), changed)
		}
	}
	held("started", of("data", 8<<20))
	s.limitVolume("data", "uid-data", 4<<20)
	held("changed", of("data", 4<<20))

	// A volume that comes is limited before the member has it, and one that is to go for as long as the member may have it.
	s.askVolumes("c1", data, more)
	s.await("c1", "having its volumes", func(c *state.Cluster) bool { return settledWith(c, "data", "more") })
	held("attached", of("data", 4<<20), of("more", 2<<20))
	for range ids {
		if got := <-remounts; !slices.Contains(got, of("more", 2<<20)) {
			t.Errorf("a member was given its volume while it was held to %v", limitsText(got))
		}
	}
	for _, id := range ids {
		n.host.HoldOpen(id, "/volumes/more", true)
	}
	s.askVolumes("c1", data)
	s.awaitState(ids[0], "keeping files open", func(m monitor.MemberState) bool { return strings.Contains(m.Unmounted, "still open") })
	s.limitVolume("more", "uid-more", 1<<20)
	held("detaching", of("data", 4<<20), of("more", 1<<20))
	for _, id := range ids {
		n.host.HoldOpen(id, "/volumes/more", false)
	}
	s.await("c1", "without it", func(c *state.Cluster) bool { return settledWith(c, "data") })
	held("detached", of("data", 4<<20))

	// What changed while the agent was away holds once it is back, and what can't be set is said and tried again.
	for _, id := range ids {
		n.host.FailLimits(id, errors.New("no such controller"))
	}
	n.stop()
	s.limitVolume("data", "uid-data", 1<<20)
	n.startAnew(4)
	s.awaitState(ids[0], "not held to its limit", func(m monitor.MemberState) bool {
		return m.Phase == api.MemberReady && strings.Contains(m.Message, "limits of I/O of its volumes are not in force") && strings.Contains(m.Message, "no such controller")
	})
	s.awaitReports(func() bool {
		states, _, _ := s.agent.Volumes("n1")
		return slices.ContainsFunc(states, func(v volume.State) bool {
			return v.UID == "uid-data" && strings.Contains(v.Problem, "no such controller")
		})
	}, func() string { return "the volume does not show that its limit is not in force" })
	for _, id := range ids {
		n.host.FailLimits(id, nil)
	}
	held("after the agent was away", of("data", 1<<20))
	s.awaitState(ids[0], "held to its limit", func(m monitor.MemberState) bool { return m.Message == "" })
	s.limitVolume("data", "uid-data", 0)
	held("lifted")
	s.ends("c1", n)
}

func TestALimitThatWasLiftedWhileTheAgentWasAwayIsLifted(t *testing.T) {
	s := newSite(t)
	n := s.newNode("n1")
	n.volumes = volumefake.NewDisk(1 << 40)
	changed := make(chan struct{}, 100)
	n.wrap = func(d driver.Driver) driver.Driver {
		return limiting{d.(*talkative), make(chan []driver.IOLimit, 1), changed}
	}
	n.start(4)
	s.createVolume(api.VolumeIntent{Name: "data", UID: "uid-data", Access: api.VolumeOneWriter, Project: api.DefaultProject, IOBytesPerSecond: 8 << 20})
	s.createWith("c1", "ada", api.ClusterHome{Kind: api.HomeNone}, api.VolumeAttachment{Name: "data"})
	c := s.awaitPhase("c1", api.ClusterReady)
	n.stop()
	s.limitVolume("data", "uid-data", 0)
	n.startAnew(4)
	for a := range c.Held() {
		for len(n.host.IOLimits(a.ID)) > 0 {
			within(t, "the limit was lifted", changed)
		}
	}
	s.ends("c1", n)
}

func TestALimitStaysWhileThePoolOfARestartedAgentFails(t *testing.T) {
	for _, detaching := range []bool{false, true} {
		s := newSite(t)
		n := s.newNode("n1")
		n.volumes = volumefake.NewDisk(1 << 40)
		changed := make(chan struct{}, 100)
		n.wrap = func(d driver.Driver) driver.Driver {
			return limiting{d.(*talkative), make(chan []driver.IOLimit, 100), changed}
		}
		n.start(4)
		s.createVolume(api.VolumeIntent{Name: "data", UID: "uid-data", Access: api.VolumeOneWriter, Project: api.DefaultProject, IOBytesPerSecond: 8 << 20})
		s.createWith("c1", "ada", api.ClusterHome{Kind: api.HomeNone}, api.VolumeAttachment{Name: "data"})
		c := s.awaitPhase("c1", api.ClusterReady)
		for a := range c.Held() {
			n.host.HoldOpen(a.ID, "/volumes/data", true)
		}
		if detaching {
			s.askVolumes("c1")
			for a := range c.Held() {
				s.awaitState(a.ID, "keeping files open", func(m monitor.MemberState) bool { return strings.Contains(m.Unmounted, "still open") })
			}
		}
		n.stop()
		for len(changed) > 0 {
			<-changed
		}
		n.volumes.Fail("uid-data", errors.New("the disk is slow"))
		n.startAnew(4)
		for a := range c.Held() {
			within(t, "the limits of "+a.ID+" were set by the restarted agent", changed)
		}
		for a := range c.Held() {
			if got := n.host.IOLimits(a.ID); len(got) != 1 || got[0].BytesPerSecond != 8<<20 {
				t.Errorf("detaching %t: while the pool fails, a member is held to %v", detaching, limitsText(got))
			}
			n.host.HoldOpen(a.ID, "/volumes/data", false)
		}
		n.volumes.Fail("uid-data", nil)
		s.ends("c1", n)
	}
}

func limitsText(limits []driver.IOLimit) []string {
	var all []string
	for _, l := range limits {
		all = append(all, l.Source+": "+api.Bytes(l.BytesPerSecond).String())
	}
	return all
}
