package agent_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agent"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/image"
)

// mountedLayers are the layers that a node has mounted, as a test sees them.
type mountedLayers struct {
	mu  sync.Mutex
	all []string
}

func (l *mountedLayers) Path(digest string, ids api.IDRange) string {
	return "/node/layers/" + image.Digest(digest).Hex() + map[bool]string{true: ".mapped"}[ids.Count > 0]
}

func (l *mountedLayers) Mount(digest string, ids api.IDRange) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.Path(digest, ids); !slices.Contains(l.all, at) {
		l.all = append(l.all, at)
	}
	return nil
}

func (l *mountedLayers) Keep(paths []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(at string) bool { return !slices.Contains(paths, at) })
	return nil
}

func (l *mountedLayers) now() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

func TestARunningMemberGetsALayerOnceItIsHereAndLetsGoOfIt(t *testing.T) {
	l, dir := newLeader(t), shortDir(t)
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	images, mounted := &held{changed: make(chan struct{}, 1)}, &mountedLayers{}
	adjust := func(c *agent.Config) {
		c.Fabric, c.Drivers = networks, []driver.Driver{fake.New(host, networks)}
		c.Images, c.ImagesChanged, c.Layers = images, images.changed, mounted
	}
	stop := l.run(dir, adjust)
	m := aMember("")
	l.want(func(d *agentstream.Desired) { withMember(d, m) })
	l.until("it runs", func(o agentstream.Observed) bool { return len(o.Members) == 1 && o.Members[0].FilesDigest != "" })

	digest := string(image.DigestOf([]byte("foam")))
	path := mounted.Path(digest, m.Assignment.UserIDs)
	with := func(number int64, layers ...api.Layer) {
		l.want(func(d *agentstream.Desired) {
			d.Members = slices.Clone(d.Members)
			d.Members[0].Layers, d.Members[0].LayersNumber = layers, number
		})
	}
	has := func() []driver.Mount {
		m, _ := host.Member(m.Assignment.ID)
		return m.Mounts
	}
	reports := func(what string, number int64, unmounted string) {
		t.Helper()
		l.until(what, func(o agentstream.Observed) bool {
			return len(o.Members) == 1 && o.Members[0].Layers == number && strings.Contains(o.Members[0].Unmounted, unmounted)
		})
	}
	with(1, api.Layer{Environment: "foam", Digest: digest})
	reports("it waits for the layer", 0, `layer "foam": image sha256:ab: 1 MiB of 2 MiB fetched`)
	if len(has()) != 0 || len(mounted.now()) != 0 {
		t.Errorf("before the layer is here, the member has %+v, and the node %q", has(), mounted.now())
	}
	images.mu.Lock()
	images.whole = true
	images.mu.Unlock()
	images.changed <- struct{}{}
	reports("it has the layer", 1, "")
	if want := []driver.Mount{{Source: path, Path: "/layers/foam", ReadOnly: true}}; !slices.Equal(has(), want) || !slices.Equal(mounted.now(), []string{path}) {
		t.Errorf("it has %+v, want %+v; the node has %q mounted", has(), want, mounted.now())
	}

	// It keeps what it has open, also under an agent that starts again, and the node keeps it mounted.
	host.HoldOpen(m.Assignment.ID, "/layers/foam", true)
	with(2)
	reports("it has files open", 1, "files of /layers/foam are still open")
	stop()
	l.change(func() { l.observed = agentstream.Observed{} }) // what the former one said
	l.run(dir, adjust)
	reports("it still has files open", 1, "files of /layers/foam are still open")
	if !slices.Equal(mounted.now(), []string{path}) {
		t.Errorf("while a member has files open, the node has %q mounted", mounted.now())
	}
	host.HoldOpen(m.Assignment.ID, "/layers/foam", false)
	reports("it has let go", 2, "")
	l.until("the node has let go", func(agentstream.Observed) bool { return len(mounted.now()) == 0 })
	if len(has()) != 0 {
		t.Errorf("it still has %+v", has())
	}
}

func TestAMemberStartsWithItsLayersAndNotWithoutThem(t *testing.T) {
	l := newLeader(t)
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	images, mounted := &held{changed: make(chan struct{}, 1)}, &mountedLayers{}
	l.run(shortDir(t), func(c *agent.Config) {
		c.Fabric, c.Drivers = networks, []driver.Driver{fake.New(host, networks)}
		c.Images, c.ImagesChanged, c.Layers = images, images.changed, mounted
	})
	m := aMember("")
	m.Layers, m.LayersNumber = []api.Layer{{Environment: "foam", Path: "/opt/foam", Digest: string(image.DigestOf([]byte("foam")))}}, 5
	l.want(func(d *agentstream.Desired) { withMember(d, m) })
	l.until("it waits for the layer", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && strings.HasPrefix(o.Members[0].Message, `layer "foam": `)
	})
	if calls := host.Calls(); slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "Start") }) {
		t.Errorf("it was started without its layer: %q", calls)
	}
	images.mu.Lock()
	images.whole = true
	images.mu.Unlock()
	images.changed <- struct{}{}
	l.until("it runs with the layer", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && o.Members[0].FilesDigest != "" && o.Members[0].Layers == 5
	})
	if got, _ := host.Member(m.Assignment.ID); len(got.Mounts) != 1 || got.Mounts[0].Path != "/opt/foam" || !slices.Equal(mounted.now(), []string{got.Mounts[0].Source}) {
		t.Errorf("it started with %+v, and the node has %q mounted", got.Mounts, mounted.now())
	}
}
