package agentstream

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"unicode/utf8"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// contentBytes bounds the part of a file that one item carries.
const contentBytes = 128 << 10

// inlineBytes is how long a file may be that is sent with its member.
const inlineBytes = 4 << 10

// desiredParts is a desired state as it is sent. What a cluster's nodes have in common goes once, and so does each content of other large files.
type desiredParts struct {
	Networks []networkParts
	Contents []content
	Jobs     []Job
	Images   []Image
	Builds   []api.Build
	Volumes  []volume.Volume
	Sharings []volume.Sharing
	Datasets []dataset.Wanted
	Caches   []dataset.CacheOrder

	// Shares and Wanted are sent, Texts and Members arrive in their place.
	Shares  []*Share
	Texts   []*sharedText
	Wanted  []Member
	Members []memberParts
	names   contentNames // of those of Wanted
}

// desiredHead is the rest of a desired state.
type desiredHead struct {
	Term     int64     `json:"term"`
	Revision int64     `json:"revision"`
	ImageKey []byte    `json:"image_key,omitempty"`
	PowerOff *PowerOff `json:"power_off,omitempty"`
	Probes   []string  `json:"probes,omitempty"`
}

// networkParts is a network with the node's own address among its peers.
type networkParts struct {
	fabric.Network
	Self netip.Addr `json:"self,omitzero"`
}

// memberParts is a member without the contents of its files.
type memberParts struct {
	Member
	Files []fileParts `json:"files"` // in place of the member's own
}

// fileParts is a file: with its text, or, when that is long or no text, with the name of a content.
type fileParts struct {
	Path        string `json:"path"`
	Text        string `json:"text,omitempty"`
	Content     string `json:"content,omitempty"`
	Mode        uint32 `json:"mode"`
	OwnedByUser bool   `json:"owned_by_user,omitempty"`
}

// inline reports whether a file's content goes with its member.
func inline(data []byte) bool { return len(data) <= inlineBytes && utf8.Valid(data) }

// content is one part of the content of files.
type content struct {
	Name string `json:"name"`
	Part int    `json:"part"`
	Data []byte `json:"data"`
}

func desiredLists() []list[desiredParts] {
	return []list[desiredParts]{
		listOf("network", func(d *desiredParts) *[]networkParts { return &d.Networks },
			func(n *networkParts) string { return fmt.Sprintf("%05d", n.Index) }),
		textList(),
		listOf("content", func(d *desiredParts) *[]content { return &d.Contents },
			func(c *content) string { return fmt.Sprintf("%s.%05d", c.Name, c.Part) }),
		memberList(),
		listOf("job", func(d *desiredParts) *[]Job { return &d.Jobs }, func(j *Job) string { return j.RunID() }),
		listOf("image", func(d *desiredParts) *[]Image { return &d.Images }, func(i *Image) string { return string(i.Digest) }),
		listOf("build", func(d *desiredParts) *[]api.Build { return &d.Builds }, func(b *api.Build) string { return b.RunID() }),
		listOf("volume", func(d *desiredParts) *[]volume.Volume { return &d.Volumes }, func(v *volume.Volume) string { return v.UID }),
		listOf("sharing", func(d *desiredParts) *[]volume.Sharing { return &d.Sharings }, func(s *volume.Sharing) string { return s.ClusterUID }),
		listOf("dataset", func(d *desiredParts) *[]dataset.Wanted { return &d.Datasets }, func(w *dataset.Wanted) string { return w.UID }),
		listOf("cache", func(d *desiredParts) *[]dataset.CacheOrder { return &d.Caches }, func(c *dataset.CacheOrder) string { return c.UID }),
	}
}

// contentNames remembers the names of contents by where they lie in memory: one that a thousand members share is hashed once. Contents
// never change, and the key keeps their memory from being used again.
type contentNames map[place]string

// place is where a content lies.
type place struct {
	first *byte
	bytes int
}

// apart takes a desired state apart. names is that of the state before; the new state's is returned.
func apart(d *Desired, names contentNames) (desiredParts, contentNames) {
	parts := desiredParts{
		Jobs: slices.Clone(d.Jobs), Images: slices.Clone(d.Images), Builds: slices.Clone(d.Builds), Volumes: slices.Clone(d.Volumes), Sharings: slices.Clone(d.Sharings), Datasets: slices.Clone(d.Datasets),
		Caches: slices.Clone(d.Caches),
		Shares: d.shares(), Wanted: d.Members, names: contentNames{},
	}
	selves := map[int]netip.Addr{}
	for _, p := range d.Peers {
		selves[p.of.Index] = p.Self
	}
	for _, n := range d.Networks {
		parts.Networks = append(parts.Networks, networkParts{n, selves[n.Index]})
	}
	sent := map[string]bool{}
	for i := range d.Members {
		for _, f := range d.Members[i].Files {
			if inline(f.Content) {
				continue
			}
			id := parts.names.add(f.Content, names)
			if sent[id] {
				continue
			}
			sent[id] = true
			part := 0
			for data := range slices.Chunk(f.Content, contentBytes) {
				parts.Contents = append(parts.Contents, content{Name: id, Part: part, Data: data})
				part++
			}
		}
	}
	return parts, parts.names
}

// add names a content, by its name among known ones if it is there.
func (n contentNames) add(data []byte, known contentNames) string {
	at := place{&data[0], len(data)}
	id, named := n[at]
	if !named {
		id, named = known[at]
	}
	if !named {
		sum := sha256.Sum256(data)
		id = hex.EncodeToString(sum[:])
	}
	n[at] = id
	return id
}

// memberList describes the members. They are compared as the leader has them: what did not change is not taken apart.
func memberList() list[desiredParts] {
	arriving := listOf("member", func(d *desiredParts) *[]memberParts { return &d.Members }, func(m *memberParts) string { return m.Assignment.ID })
	arriving.changes = func(before, after *desiredParts, emit emitter) error {
		id := func(m *Member) string { return m.Assignment.ID }
		return changesOf(before.Wanted, after.Wanted, id, func(m *Member) any { return after.names.parts(m) }, emit)
	}
	return arriving
}

// parts takes a member apart; n has the names of its contents.
func (n contentNames) parts(m *Member) memberParts {
	p := memberParts{Member: *m, Files: make([]fileParts, 0, len(m.Files))}
	p.Member.Files = nil
	for _, f := range m.Files {
		part := fileParts{Path: f.Path, Mode: f.Mode, OwnedByUser: f.OwnedByUser}
		if inline(f.Content) {
			part.Text = string(f.Content)
		} else {
			part.Content = n[place{&f.Content[0], len(f.Content)}]
		}
		p.Files = append(p.Files, part)
	}
	return p
}

// together puts a desired state together again. The contents of files are shared among members.
func together(parts desiredParts, rawHead json.RawMessage) (*Desired, error) {
	var head desiredHead
	if err := json.Unmarshal(rawHead, &head); err != nil {
		return nil, fmt.Errorf("the head of a desired state: %w", err)
	}
	networks, selves := make([]fabric.Network, 0, len(parts.Networks)), map[int]netip.Addr{}
	for _, n := range parts.Networks {
		networks = append(networks, n.Network)
		selves[n.Index] = n.Self
	}
	d := &Desired{
		Term: head.Term, Revision: head.Revision, ImageKey: head.ImageKey, PowerOff: head.PowerOff, Probes: head.Probes,
		Networks: networks, Jobs: parts.Jobs, Images: parts.Images, Builds: parts.Builds, Volumes: parts.Volumes, Sharings: parts.Sharings, Datasets: parts.Datasets, Caches: parts.Caches,
		Members: make([]Member, 0, len(parts.Members)),
	}
	d.Peers, d.Groups, d.Files = sharesOf(parts.Texts, selves)
	contents := map[string][]byte{}
	for _, c := range parts.Contents { // by name and part
		if c.Part == 0 {
			contents[c.Name] = slices.Clip(c.Data) // appending copies: the part itself stays as it is
		} else {
			contents[c.Name] = append(contents[c.Name], c.Data...)
		}
	}
	for _, p := range parts.Members {
		m := p.Member
		for _, f := range p.Files {
			data, known := contents[f.Content]
			switch {
			case f.Content == "":
				data = []byte(f.Text)
			case !known:
				return nil, fmt.Errorf("the content of %s of member %s is missing", f.Path, m.Assignment.ID)
			}
			m.Files = append(m.Files, driver.File{Path: f.Path, Content: data, Mode: f.Mode, OwnedByUser: f.OwnedByUser})
		}
		d.Members = append(d.Members, m)
	}
	return d.Whole()
}

// observedHead is what of an observation is no list.
type observedHead struct {
	Term            int64  `json:"term"`
	PeerURL         string `json:"peer_url,omitempty"`
	PowerOffProblem string `json:"power_off_problem,omitempty"`

	DataPaths []dataset.Passage  `json:"data_paths,omitempty"`
	CacheRoom *dataset.CacheRoom `json:"cache_room,omitempty"`
}

func observedLists() []list[Observed] {
	itself := func(s *string) string { return *s }
	return []list[Observed]{
		listOf("member", func(o *Observed) *[]MemberObserved { return &o.Members }, func(m *MemberObserved) string { return m.ID }),
		listOf("clean", func(o *Observed) *[]string { return &o.Clean }, itself),
		listOf("job", func(o *Observed) *[]JobObserved { return &o.Jobs }, func(j *JobObserved) string { return j.ID }),
		listOf("drift", func(o *Observed) *[]string { return &o.Drift }, itself),
		listOf("image", func(o *Observed) *[]ImageObserved { return &o.Images }, func(i *ImageObserved) string { return string(i.Digest) }),
		listOf("build", func(o *Observed) *[]BuildObserved { return &o.Builds },
			func(b *BuildObserved) string { return fmt.Sprintf("%s.%d", b.ID, b.Attempt) }),
		listOf("volume", func(o *Observed) *[]volume.State { return &o.Volumes }, func(v *volume.State) string { return v.UID }),
		listOf("purged-volume", func(o *Observed) *[]string { return &o.PurgedVolumes }, itself),
		listOf("sharing", func(o *Observed) *[]volume.SharingState { return &o.Sharings }, func(s *volume.SharingState) string { return s.ClusterUID }),
		listOf("dataset", func(o *Observed) *[]dataset.State { return &o.Datasets }, func(s *dataset.State) string { return s.UID }),
		listOf("cache", func(o *Observed) *[]dataset.CacheState { return &o.Caches }, func(s *dataset.CacheState) string { return s.UID }),
	}
}

// observedWhole adds the head of an observation to its lists.
func observedWhole(o Observed, rawHead json.RawMessage) (*Observed, error) {
	var head observedHead
	if err := json.Unmarshal(rawHead, &head); err != nil {
		return nil, fmt.Errorf("the head of an observation: %w", err)
	}
	o.Term, o.PeerURL, o.PowerOffProblem, o.DataPaths = head.Term, head.PeerURL, head.PowerOffProblem, head.DataPaths
	o.CacheRoom = head.CacheRoom
	return &o, nil
}
