package monitor

import (
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Connected reports whether a node's agent has a stream and was heard on it of late, and when it was heard last; zero when it was not since this
// server started.
func (m *Monitor) Connected(nodeName string) (connected bool, lastSeen time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[nodeName]
	if n == nil || !n.known {
		return false, time.Time{}
	}
	return n.stream != nil && n.reported && m.cfg.Now().Sub(n.lastSeen) < m.cfg.DeathTimer/2, n.lastSeen
}

// PowerOffProblem is why a connected node can't power itself off though it was told to; empty when it says nothing of the kind.
func (m *Monitor) PowerOffProblem(nodeName string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[nodeName]; n != nil && n.stream != nil {
		return n.observed.PowerOffProblem
	}
	return ""
}

// Builds returns what connected nodes last said of builds, by node.
func (m *Monitor) Builds() map[string][]agentstream.BuildObserved {
	m.mu.Lock()
	defer m.mu.Unlock()
	builds := map[string][]agentstream.BuildObserved{}
	for name, n := range m.nodes {
		if n.stream != nil && n.reported && len(n.observed.Builds) > 0 {
			builds[name] = n.observed.Builds
		}
	}
	return builds
}

// Volumes returns what a node's agent last said of volumes, and the UIDs of those of which it says that nothing is left. heard is false, and nothing
// is returned, unless the agent is connected and was heard of late.
func (m *Monitor) Volumes(nodeName string) (volumes []volume.State, purged []string, heard bool) {
	if connected, _ := m.Connected(nodeName); !connected {
		return nil, nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[nodeName]
	if n == nil || n.stream == nil || !n.reported {
		return nil, nil, false
	}
	return n.observed.Volumes, n.observed.PurgedVolumes, true
}

// Sharings are what a node's agent last said of volumes that cross from and to the node. heard is false, and nothing is returned, unless the agent is
// connected and was heard of late.
func (m *Monitor) Sharings(nodeName string) (states []volume.SharingState, heard bool) {
	if connected, _ := m.Connected(nodeName); !connected {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[nodeName]
	if n == nil || n.stream == nil || !n.reported {
		return nil, false
	}
	return n.observed.Sharings, true
}

// mostReadings bounds what a node says of the readers of a dataset: agents keep as many.
const mostReadings = 64

// Datasets are what connected nodes last said of datasets.
func (m *Monitor) Datasets() []plan.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	var nodes []plan.Node
	for name, n := range m.nodes {
		if n.stream != nil && n.reported && (len(n.observed.Datasets)+len(n.observed.Caches)+len(n.observed.DataPaths) > 0 || n.observed.CacheRoom != nil) {
			nodes = append(nodes, plan.Node{
				Name: name, PeerURL: n.observed.PeerURL, States: n.observed.Datasets, Caches: n.observed.Caches, CacheRoom: n.observed.CacheRoom, Paths: n.observed.DataPaths,
			})
		}
	}
	slices.SortFunc(nodes, func(a, b plan.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// Holders are the connected nodes that hold an image wholly, and those that fetch it and have a part, by name, with the URLs that they serve
// it at; "" for one that does not.
func (m *Monitor) Holders(digest image.Digest) (whole, fetching map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	whole, fetching = map[string]string{}, map[string]string{}
	for name, n := range m.nodes {
		if n.stream == nil || !n.reported {
			continue
		}
		for _, i := range n.observed.Images {
			switch {
			case i.Digest != digest:
			case !i.Whole:
				fetching[name] = n.observed.PeerURL
			case n.observed.PeerURL != "":
				whole[name] = n.observed.PeerURL
			}
		}
	}
	return whole, fetching
}

// Image is the last report from a connected node about an image.
func (m *Monitor) Image(nodeName string, digest image.Digest) (agentstream.ImageObserved, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[nodeName]; n != nil && n.stream != nil {
		for _, i := range n.observed.Images {
			if i.Digest == digest {
				return i, true
			}
		}
	}
	return agentstream.ImageObserved{}, false
}
