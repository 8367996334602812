package agent_test

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agent"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
)

// caches are a node's caches, as a test says: each answers with its name.
type caches struct {
	mu      sync.Mutex
	orders  []dataset.CacheOrder
	ready   bool
	changed chan struct{}
}

func (c *caches) Run(ctx context.Context) { <-ctx.Done() }

func (c *caches) Want(all []dataset.CacheOrder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orders = all
}

func (c *caches) States() []dataset.CacheState {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []dataset.CacheState
	for _, o := range c.orders {
		list = append(list, dataset.CacheState{UID: o.UID, Running: c.ready})
	}
	return list
}

func (c *caches) Ready(string, bool) (bool, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready, "waits for its cache to start"
}

func (c *caches) Serve(ctx context.Context, uid string, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	// It says which it is, and repeats what it hears.
	_, _ = io.WriteString(conn, uid+":")
	_, _ = io.Copy(conn, conn)
	return conn.Close()
}

func (c *caches) Dial(_ context.Context, uid string) (net.Conn, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	here, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return nil, err
	}
	there, err := listener.Accept()
	if err != nil {
		return nil, err
	}
	go func() {
		_, _ = io.WriteString(there, uid+":")
		_, _ = io.Copy(there, there)
		_ = there.Close()
	}()
	return here, nil
}

func TestAMemberReachesEachCacheAtItsOwnPortUntilItEnds(t *testing.T) {
	l := newLeader(t)
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	near, copies := &caches{changed: make(chan struct{}, 1)}, &replicas{changed: make(chan struct{}, 1)}
	l.run(shortDir(t), func(c *agent.Config) {
		c.Fabric, c.Drivers = networks, []driver.Driver{fake.New(host, networks)}
		c.Caches, c.CachesChanged = near, near.changed
		c.Datasets, c.DatasetsChanged = copies, copies.changed
	})
	l.want(func(d *agentstream.Desired) {
		d.Caches = []dataset.CacheOrder{{UID: "d1", Name: "events"}, {UID: "d3", Name: "more"}}
		m := aMember("")
		m.Datasets = []dataset.Claim{
			{UID: "d1", Name: "events", Way: api.DatasetCached, Port: 10940, Metered: true}, {UID: "d2", Name: "far", Way: api.DatasetStream}, {UID: "d3", Name: "more", Way: api.DatasetCached, Port: 10942},
		}
		withMember(d, m)
	})
	l.until("it says what it waits for", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && o.Members[0].Message == `dataset "events" waits for its cache to start` && len(o.Caches) == 2
	})
	if calls := host.Calls(); slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "Start") }) {
		t.Errorf("it was started before its caches: %q", calls)
	}
	near.mu.Lock()
	near.ready = true
	near.mu.Unlock()
	near.changed <- struct{}{}
	l.until("it starts", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && o.Members[0].FilesDigest != "" && o.Members[0].Message == "" && host.Inside("u1.a.1", 10942) != nil
	})
	if m, _ := host.Member("u1.a.1"); len(m.Mounts) != 0 {
		t.Errorf("what it reads by URL is mounted, too: %+v", m.Mounts)
	}
	if host.Inside("u1.a.1", 10941) != nil {
		t.Error("there is a door for a dataset that is read from its sources")
	}
	copies.mu.Lock()
	if len(copies.used) != 0 {
		t.Errorf("copies are in use: %v", copies.used)
	}
	copies.mu.Unlock()
	conns := map[string]net.Conn{}
	for port, uid := range map[int]string{10940: "d1", 10942: "d3"} {
		conn, err := net.Dial("tcp", host.Inside("u1.a.1", port).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns[uid] = conn
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, "hello")
		heard := make([]byte, len("d1:hello"))
		if _, err := io.ReadFull(conn, heard); err != nil || string(heard) != uid+":hello" {
			t.Errorf("at port %d: %q, %v; want the cache of %s", port, heard, err, uid)
		}
	}
	_ = conns["d1"].Close()
	l.until("what it read of one that is metered is reported", func(o agentstream.Observed) bool {
		read := map[string]int64{}
		for i := range o.Caches {
			for _, r := range o.Caches[i].Readings {
				read[o.Caches[i].UID] += r.Bytes
			}
		}
		return len(read) == 1 && read["d1"] == int64(len("d1:hello"))
	})
	l.want(func(d *agentstream.Desired) {
		d.Members = slices.Clone(d.Members)
		d.Members[0].Release = true
	})
	l.until("it is clean", func(o agentstream.Observed) bool { return len(o.Clean) == 1 })
	if _, err := conns["d3"].Read(make([]byte, 1)); err == nil {
		t.Error("a connection to a cache outlives its member")
	}
}

func TestAMemberWithACachedDatasetDoesNotStartOnANodeThatKeepsNoCaches(t *testing.T) {
	l := newLeader(t)
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	l.run(shortDir(t), func(c *agent.Config) {
		c.Fabric, c.Drivers = networks, []driver.Driver{fake.New(host, networks)}
	})
	l.want(func(d *agentstream.Desired) {
		m := aMember("")
		m.Datasets = []dataset.Claim{{UID: "d1", Name: "events", Way: api.DatasetCached, Port: 10940}}
		withMember(d, m)
	})
	l.until("it says so", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && strings.Contains(o.Members[0].Message, "keeps no caches")
	})
}
