// Package ufm makes networks on an InfiniBand fabric that UFM Enterprise manages, by its REST API.
//
// UFM is asked for all partitions, and told the differences only: removals first. An answer of 200 is no proof. What Observe reports is UFM's word,
// read back after the change; with Tables it is also what the ports' own tables say, and where the two differ the port is unknown. UFM may carry out a
// request whose answer was lost. So after such a request nothing counts as in force until it can't take effect any more. The package must never
// touch partitions outside of its range of keys, nor skip the check of UFM's certificate. Start with New.
//
// It follows the "UFM Enterprise REST API Guide" (PKey GUIDs REST API, versions 6.10 to 6.22) and was never run on a real UFM.
package ufm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// Config is what a Site needs.
type Config struct {
	// Dir is the folder of the executor's own files, which it makes. Where several servers may lead, they share it.
	Dir string
	// URL is UFM's, such as https://ufm.example.com.
	URL string
	// CA is a PEM file of the authority that signed UFM's certificate, or of that certificate itself; "": the system's authorities.
	CA string
	// ServerName is the name in UFM's certificate; "": the host of URL.
	ServerName string
	// Credentials authenticate to UFM.
	Credentials Credentials
	// First and Last are the range of partition keys that are this site's. Others are not touched.
	First, Last int
	// Timeout bounds one request; 0: 10 s.
	Timeout time.Duration
	// Late is how long UFM may still carry out a request whose answer was lost; 0: one minute.
	Late time.Duration
	// Guarded: the operator says that UFM protects the ports by an M_Key.
	Guarded bool
	// Tables reads the ports' own tables; nil: UFM's word is all there is.
	Tables Tables
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Tables reads partition keys from ports themselves, past UFM.
type Tables interface {
	// ReadKeys returns, by place, the keys in its port's table with whether each is limited, and why a place can't be read. A place that is in
	// neither map was not read.
	ReadKeys(ctx context.Context, places []string) (keys map[string]map[int]bool, unknown map[string]string, err error)
}

// Site is an executor. It implements site.Site.
type Site struct {
	cfg    Config
	client *client

	mu      sync.Mutex
	epoch   lifecycle.Epoch // of this executor's newest Apply; zero before
	wanted  map[entry]bool
	inForce lifecycle.Epoch
}

var (
	_ site.Site    = (*Site)(nil)
	_ site.Checker = (*Site)(nil)
	_ site.Guarded = (*Site)(nil)
)

// entry is one place in one network; its value in a map is whether the membership is limited.
type entry struct {
	key int
	at  string
}

// New makes an executor. It asks nothing of UFM.
func New(cfg Config) (*Site, error) {
	if cfg.First < api.MinPKey || cfg.Last > api.MaxPKey || cfg.First > cfg.Last {
		return nil, fmt.Errorf("keys %s to %s are no range of partition keys; UFM needs one of its own for this site", api.PKeyText(cfg.First), api.PKeyText(cfg.Last))
	}
	cfg.Timeout, cfg.Late = cmp.Or(cfg.Timeout, 10*time.Second), cmp.Or(cfg.Late, time.Minute)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of the fabric's files can't be made: %w", err)
	}
	return &Site{cfg: cfg, client: c}, nil
}

// Apply tells UFM what differs. It returns when UFM has accepted all of it.
func (s *Site) Apply(ctx context.Context, epoch lifecycle.Epoch, networks []site.Network) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.Check(networks); err != nil {
		return err
	}
	unlock, err := lock(s.cfg.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	had, err := loadRecord(s.cfg.Dir)
	if err != nil {
		return err
	}
	if err := had.Epoch.Accept(epoch); err != nil {
		return fmt.Errorf("%w: %w", site.ErrStale, err)
	}
	wanted := map[entry]bool{}
	for _, n := range networks {
		for _, p := range n.Ports {
			wanted[entry{n.Number, p.At}] = p.Limited
			had.note(p.At)
		}
	}
	had.Epoch = epoch
	if err := had.store(s.cfg.Dir); err != nil {
		return err
	}
	s.epoch, s.wanted = epoch, wanted
	present, err := s.client.partitions(ctx)
	if err != nil {
		return err
	}
	return s.carryOut(ctx, had, plan(present, networks, s.cfg.First, s.cfg.Last))
}

// carryOut sends requests, one after the other. Until all are answered, the record says that answers may be lost: this process may end meanwhile.
func (s *Site) carryOut(ctx context.Context, had record, changes []change) error {
	if len(changes) == 0 {
		return nil
	}
	during := had
	during.Late = s.cfg.Now().Add(time.Duration(len(changes))*s.cfg.Timeout + s.cfg.Late)
	if err := during.store(s.cfg.Dir); err != nil {
		return err
	}
	for i, c := range changes {
		err := s.client.change(ctx, c)
		if err == nil {
			continue
		}
		if lost := (*lostError)(nil); errors.As(err, &lost) {
			had.Late = s.cfg.Now().Add(s.cfg.Late)
		}
		return errors.Join(fmt.Errorf("%w; %d of %d requests were carried out", err, i, len(changes)), had.store(s.cfg.Dir))
	}
	// What was accepted and can't be seen may come later.
	if present, err := s.client.partitions(ctx); err != nil || !maps.Equal(s.own(present), s.wanted) {
		had.Late = s.cfg.Now().Add(s.cfg.Late)
	}
	return had.store(s.cfg.Dir)
}

// Check implements site.Checker. It counts the partitions of this site and the default one: those that UFM's operator makes beside it are not known here.
func (s *Site) Check(networks []site.Network) error {
	if err := site.Validate(networks); err != nil {
		return err
	}
	for _, n := range networks {
		if n.Number < s.cfg.First || n.Number > s.cfg.Last {
			return &site.Refusal{Number: n.Number, Err: fmt.Errorf("partition key %s is not in this site's range of UFM, %s to %s", api.PKeyText(n.Number), api.PKeyText(s.cfg.First), api.PKeyText(s.cfg.Last))}
		}
		if mtu := n.Partition.MTUBytes; mtu != 0 && mtu != 2048 && mtu != 4096 {
			return &site.Refusal{Err: fmt.Errorf("partition %s: UFM makes partitions with an MTU of 2048 or 4096 bytes, not %d", api.PKeyText(n.Number), mtu)}
		}
		for _, p := range n.Ports {
			if _, err := partitions.GUID(p.At); err != nil {
				return fmt.Errorf("partition %s: port %q: %w", api.PKeyText(n.Number), p.At, err)
			}
		}
	}
	return partitions.Room(networks, nil, 0, nil)
}

// Guarded implements site.Guarded.
func (s *Site) Guarded() bool { return s.cfg.Guarded }

// Observe reads UFM's partitions and, where Tables are there, those of the ports.
func (s *Site) Observe(ctx context.Context) (site.Observation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return site.Observation{}, err
	}
	had, err := loadRecord(s.cfg.Dir)
	if err != nil {
		return site.Observation{}, err
	}
	// In force is what was so before the state that is reported was read.
	before, err := s.client.partitions(ctx)
	if err != nil {
		return site.Observation{}, err
	}
	if s.epoch != (lifecycle.Epoch{}) && had.Epoch == s.epoch && !s.cfg.Now().Before(had.Late) && maps.Equal(s.own(before), s.wanted) {
		s.inForce = s.epoch
	}
	present, err := s.client.partitions(ctx)
	if err != nil {
		return site.Observation{}, err
	}
	seen, unknown, err := s.compare(ctx, s.own(present), had.Places)
	if err != nil {
		return site.Observation{}, err
	}
	return site.Observation{Epoch: s.inForce, Networks: networksOf(seen), Unknown: unknown}, nil
}

// own are the members of partitions in this site's range.
func (s *Site) own(all map[int]partition) map[entry]bool {
	members := map[entry]bool{}
	for key, p := range all {
		if key < s.cfg.First || key > s.cfg.Last {
			continue
		}
		for at, limited := range p.members {
			members[entry{key, at}] = limited
		}
	}
	return members
}

// compare takes the ports' own word where it can be had. A port that UFM says something else of is unknown. A key that only the port's table has still
// counts as there.
func (s *Site) compare(ctx context.Context, told map[entry]bool, places []string) (seen map[entry]bool, unknown map[string]string, err error) {
	if s.cfg.Tables == nil {
		return told, nil, nil
	}
	all := map[string]bool{}
	for _, at := range places {
		all[at] = true
	}
	for e := range told {
		all[e.at] = true
	}
	sorted := slices.Sorted(maps.Keys(all))
	keys, why, err := s.cfg.Tables.ReadKeys(ctx, sorted)
	if err != nil {
		return nil, nil, fmt.Errorf("the tables of the fabric's ports can't be read: %w", err)
	}
	seen, unknown = maps.Clone(told), map[string]string{}
	for _, at := range sorted {
		table, read := keys[at]
		if reason, is := why[at]; is || !read {
			unknown[at] = cmp.Or(reason, "its table was not read")
			continue
		}
		for key, limited := range table {
			if key < s.cfg.First || key > s.cfg.Last {
				continue
			}
			if as, is := told[entry{key, at}]; !is || as != limited {
				unknown[at] = fmt.Sprintf("its table has partition %s as UFM does not", api.PKeyText(key))
			}
			seen[entry{key, at}] = limited
		}
		for e := range told {
			if _, is := table[e.key]; e.at == at && !is {
				unknown[at] = fmt.Sprintf("its table lacks partition %s, of which it is a member for UFM", api.PKeyText(e.key))
			}
		}
	}
	return seen, unknown, nil
}

func networksOf(members map[entry]bool) []site.Network {
	by := map[int][]site.Port{}
	for e, limited := range members {
		by[e.key] = append(by[e.key], site.Port{At: e.at, Limited: limited})
	}
	var all []site.Network
	for _, key := range slices.Sorted(maps.Keys(by)) {
		slices.SortFunc(by[key], func(a, b site.Port) int { return cmp.Compare(a.At, b.At) })
		all = append(all, site.Network{Number: key, Ports: by[key]})
	}
	return all
}
