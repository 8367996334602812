package opensm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/netdiscover"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/smp"
)

const (
	// fullEvery is how long a place's reading holds while nothing that is desired of it changes. It is less than the pause between two audits
	// of site.Keeper, so that each of them reads everything.
	fullEvery = 25 * time.Second
	// sweepTime is how long an observation waits for OpenSM to carry out the newest file.
	sweepTime = 3 * time.Second
	// firstPoll and lastPoll are the pauses between two looks at the marker.
	firstPoll, lastPoll = 10 * time.Millisecond, 100 * time.Millisecond
)

// command is the Runner of a machine that is on the fabric.
func command(ctx context.Context, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, program, args...)
}

// awaitMarker reads which file the master subnet manager has carried out, until that is the newest one or it has had its time.
func (s *Site) awaitMarker(ctx context.Context) error {
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		seen, err := s.readMarker(ctx)
		if err != nil {
			return err
		}
		s.seen = seen
		if s.written.Marker == 0 || seen == s.written.Marker || time.Since(s.reloaded) > s.patience {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// readMarker returns the marker in the table of the master subnet manager's port; 0 when no manager answers, or the table has not exactly one.
func (s *Site) readMarker(ctx context.Context) (int, error) {
	for range 2 {
		lid := s.fabric.managerLID
		requests := []smp.Request{{LID: smp.OwnPort, Attribute: smp.AttributePortInfo}}
		if lid != 0 {
			requests = append(requests, smp.Request{LID: lid, Attribute: smp.AttributeSMInfo})
			requests = append(requests, smp.KeyTable(lid, 0, partitions.DefaultRoom)...)
		}
		answers, err := s.reader.Read(ctx, requests)
		if err != nil {
			return 0, err
		}
		own, err := decode(answers[0], smp.DecodePortInfo)
		if err != nil {
			return 0, fmt.Errorf("this machine's port of the fabric can't be read: %w", err)
		}
		if lid != 0 && own.ManagerLID == lid {
			return s.markerOf(answers[1], answers[2:]), nil
		}
		if s.fabric.managerLID = own.ManagerLID; own.ManagerLID == 0 {
			break
		}
	}
	s.fabric.master = smp.ManagerInfo{}
	return 0, nil
}

func (s *Site) markerOf(manager smp.Answer, table []smp.Answer) int {
	info, err := decode(manager, smp.DecodeManagerInfo)
	if err != nil || info.State != smp.Master {
		s.fabric.master = smp.ManagerInfo{}
		return 0
	}
	s.fabric.master = info
	marker := 0
	for _, answer := range table {
		keys, err := decode(answer, smp.DecodeKeys)
		if err != nil {
			continue // the table has no such block
		}
		for _, key := range keys {
			if !partitions.IsMarker(key.Number) {
				continue
			}
			if marker != 0 {
				return 0
			}
			marker = key.Number
		}
	}
	return marker
}

func decode[T any](answer smp.Answer, decoder func([]byte) (T, error)) (T, error) {
	if answer.Err != nil {
		var none T
		return none, answer.Err
	}
	return decoder(answer.Data)
}

// read reads the places whose tables may have changed by what is desired, and from time to time all.
func (s *Site) read(ctx context.Context) error {
	f := &s.fabric
	full := time.Since(f.full) > fullEvery
	var list []*place
	for at := range f.changed {
		p := f.places[at]
		full = full || p == nil
		list = append(list, p)
	}
	if full {
		begun := time.Now()
		if err := s.discover(ctx); err != nil {
			return err
		}
		list = list[:0]
		for _, p := range f.places {
			list = append(list, p)
		}
		defer func() { s.audited(begun) }()
	}
	slices.SortFunc(list, func(a, b *place) int { return cmp.Compare(a.at, b.at) })
	moved, err := s.readTables(ctx, list)
	if err != nil {
		return err
	}
	if moved || !full {
		if moved {
			f.full = time.Time{} // discovered anew next time
		}
		return nil
	}
	f.full = time.Now()
	return nil
}

// discover finds all places, how large their tables are, and the subnet managers.
func (s *Site) discover(ctx context.Context) error {
	var out, problem bytes.Buffer
	var args []string
	if s.cfg.Adapter != "" {
		args = []string{"-C", s.cfg.Adapter, "-P", fmt.Sprint(max(s.cfg.Port, 1))}
	}
	cmd := s.cfg.Run(ctx, "ibnetdiscover", args...)
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("the fabric can't be discovered: ibnetdiscover: %w: %s", err, strings.TrimSpace(problem.String())))
	}
	ports, err := netdiscover.Parse(&out)
	if err != nil {
		return err
	}
	places, requests, use := map[string]*place{}, []smp.Request(nil), []func(smp.Answer){}
	ask := func(lid, attribute int, then func(smp.Answer)) {
		requests, use = append(requests, smp.Request{LID: lid, Attribute: attribute}), append(use, then)
	}
	found := map[string]smp.ManagerInfo{}
	managers := []int{}
	switches := map[int][]*place{}
	for _, port := range ports {
		p := &place{at: fmt.Sprintf("%016x", port.GUID), port: port, room: partitions.DefaultRoom}
		places[p.at] = p
		if port.LID == 0 || port.Switch.LID == 0 {
			continue
		}
		ask(port.LID, smp.AttributeNodeInfo, func(a smp.Answer) {
			if info, err := decode(a, smp.DecodeNodeInfo); err == nil {
				p.room = info.Room
			}
		})
		ask(port.LID, smp.AttributePortInfo, func(a smp.Answer) {
			if info, err := decode(a, smp.DecodePortInfo); err == nil && info.Manager {
				managers = append(managers, port.LID)
			}
		})
		switches[port.Switch.LID] = append(switches[port.Switch.LID], p)
	}
	for lid, behind := range switches {
		ask(lid, smp.AttributeSwitchInfo, func(a smp.Answer) {
			room, err := decode(a, smp.DecodeSwitchRoom)
			if err != nil {
				room = partitions.DefaultRoom
			}
			for _, p := range behind {
				p.switchRoom = room
			}
		})
	}
	if err := s.ask(ctx, requests, use); err != nil {
		return err
	}
	requests, use = nil, nil
	for _, lid := range managers {
		ask(lid, smp.AttributeSMInfo, func(a smp.Answer) {
			if info, err := decode(a, smp.DecodeManagerInfo); err == nil {
				found[fmt.Sprintf("%016x", info.GUID)] = info
			}
		})
	}
	if err := s.ask(ctx, requests, use); err != nil {
		return err
	}
	s.fabric.places, s.fabric.managers = places, found
	s.roomsLock.Lock()
	defer s.roomsLock.Unlock()
	s.rooms = s.fabric.rooms()
	return nil
}

func (s *Site) ask(ctx context.Context, requests []smp.Request, use []func(smp.Answer)) error {
	answers, err := s.reader.Read(ctx, requests)
	for i, a := range answers {
		use[i](a)
	}
	return err
}

// readTables reads the tables of places, on their adapters and on the switch ports before them. It reports whether one is no longer where it was
// discovered.
func (s *Site) readTables(ctx context.Context, list []*place) (moved bool, err error) {
	var requests []smp.Request
	switches := map[int]int{} // the index of the request for its NodeInfo, by LID
	for _, p := range list {
		if _, asked := switches[p.port.Switch.LID]; !asked && p.port.Switch.LID != 0 {
			switches[p.port.Switch.LID] = len(requests)
			requests = append(requests, smp.Request{LID: p.port.Switch.LID, Attribute: smp.AttributeNodeInfo})
		}
	}
	first := make([]int, len(list))
	for i, p := range list {
		if first[i] = len(requests); p.port.LID != 0 && p.port.Switch.LID != 0 {
			requests = append(requests, p.requests()...)
		}
	}
	answers, err := s.reader.Read(ctx, requests)
	if err != nil {
		return false, err
	}
	s.report.PortsRead += len(list)
	for i, p := range list {
		if p.port.LID == 0 || p.port.Switch.LID == 0 {
			p.problem, moved = "no subnet manager has given it a LID", true
			continue
		}
		p.take(answers[switches[p.port.Switch.LID]], answers[first[i]:])
		moved = moved || p.moved
		if s.fabric.asDesired(p) {
			delete(s.fabric.changed, p.at)
		} else {
			s.fabric.changed[p.at] = true
		}
	}
	return moved, nil
}
