package agentstream

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Share is content that many nodes have in common: the members of a network with their nodes, the security groups of a network, or the files of
// a cluster's members. The leader renders a share once for each
// change, and a thousand streams send the same bytes. A node that has a former share is sent the difference. A share never changes; make one
// with NewPeers, NewGroups or NewFiles.
type Share struct {
	of     owner
	digest string // of the content
	texts  []*sharedText
}

// owner is the network or the cluster of a share: exactly one of its fields is set.
type owner struct {
	Index   int    `json:"index,omitempty"`   // of the network whose peers the share has
	Groups  int    `json:"groups,omitempty"`  // index of the network whose security groups the share has
	Cluster string `json:"cluster,omitempty"` // UID of the cluster whose files the share has
}

// compare orders groups before peers, and peers before files.
func (o owner) compare(other owner) int {
	return cmp.Or(strings.Compare(o.Cluster, other.Cluster), cmp.Compare(o.Index, other.Index), cmp.Compare(o.Groups, other.Groups))
}

// NewPeers returns the share of a network's peers: its members that reach each other, each with the underlay address of its node.
func NewPeers(index int, members []fabric.Remote) (*Share, error) {
	var text strings.Builder
	for _, m := range slices.SortedFunc(slices.Values(members), fabric.Remote.Compare) {
		fmt.Fprintf(&text, "%v %v %s", m.Peer, m.Address, m.MAC)
		if m.Key != "" {
			text.WriteString(" " + m.Key)
		}
		text.WriteString("\n")
	}
	return newShare(owner{Index: index}, []driver.File{{Content: []byte(text.String())}})
}

// NewFiles returns the share of the files that each member of a cluster has, as text. They must not change afterwards.
func NewFiles(clusterUID string, files []driver.File) (*Share, error) {
	return newShare(owner{Cluster: clusterUID}, files)
}

func newShare(of owner, files []driver.File) (*Share, error) {
	s := &Share{of: of}
	for _, f := range files {
		text, err := newSharedText(of, f)
		if err != nil {
			return nil, err
		}
		s.texts = append(s.texts, text)
	}
	slices.SortFunc(s.texts, func(a, b *sharedText) int { return strings.Compare(a.Path, b.Path) })
	s.digest = FilesDigest(s.content())
	return s, nil
}

// Compare orders the shares of a node: peers by their networks' indexes, then files by their clusters' UIDs.
func (s *Share) Compare(other *Share) int { return s.of.compare(other.of) }

// content returns the texts of a share as files, in the order of their paths.
func (s *Share) content() []driver.File {
	files := make([]driver.File, 0, len(s.texts))
	for _, t := range s.texts {
		files = append(files, driver.File{Path: t.Path, Content: []byte(t.Text), Mode: t.Mode, OwnedByUser: t.OwnedByUser})
	}
	return files
}

// NodePeers is the peers of a network as one node has them.
type NodePeers struct {
	*Share
	// Self is the node's own address among the peers.
	Self netip.Addr
}

// remotes returns the members on all nodes but this one.
func (p NodePeers) remotes() ([]fabric.Remote, error) {
	var remotes []fabric.Remote
	for _, t := range p.texts {
		for line := range strings.Lines(t.Text) {
			r, err := readRemote(strings.TrimSuffix(line, "\n"))
			if err != nil {
				return nil, fmt.Errorf("the peers of network %d: %w", p.of.Index, err)
			}
			if r.Peer != p.Self {
				remotes = append(remotes, r)
			}
		}
	}
	return remotes, nil
}

// readRemote reads a line of a share of peers.
func readRemote(line string) (r fabric.Remote, err error) {
	words := strings.Split(line, " ")
	if len(words) != 3 && len(words) != 4 {
		return r, fmt.Errorf("%q is not a peer, an address and a MAC, and a key where there is encryption", line)
	}
	if len(words) == 4 {
		r.Key = words[3]
	}
	if r.Peer, err = netip.ParseAddr(words[0]); err != nil {
		return r, err
	}
	r.Address, err = netip.ParseAddr(words[1])
	r.MAC = words[2]
	return r, err
}

// Same reports whether two shares have the same owner and content; either may be nil.
func (s *Share) Same(other *Share) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.of == other.of && s.digest == other.digest
}

// sharedText is one file of a share; without a path, the members of a network with their peers, one on each line.
type sharedText struct {
	owner
	Path        string `json:"path,omitempty"`
	Mode        uint32 `json:"mode,omitempty"`
	OwnedByUser bool   `json:"owned_by_user,omitempty"`
	Text        string `json:"text"`

	key, digest string
	encoded     json.RawMessage

	mu sync.Mutex
	// edits are the changes from other texts to this one, by the digests of those; nil for one that is no shorter than the text.
	edits map[string]json.RawMessage
}

func newSharedText(of owner, f driver.File) (*sharedText, error) {
	if !utf8.Valid(f.Content) {
		return nil, fmt.Errorf("the shared file %s is not UTF-8 text", f.Path)
	}
	t := &sharedText{owner: of, Path: f.Path, Mode: f.Mode, OwnedByUser: f.OwnedByUser, Text: string(f.Content)}
	t.key = textKey(t)
	encoded, err := encode(t)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(encoded)
	t.encoded, t.digest, t.edits = encoded, hex.EncodeToString(sum[:]), map[string]json.RawMessage{}
	return t, nil
}

// textKey orders texts by their shares: no UID of a cluster is empty.
func textKey(t *sharedText) string {
	return fmt.Sprintf("%s %05d %05d %s", t.Cluster, t.Index, t.Groups, t.Path)
}

// editOf returns the change that makes this text of another, or nil when it is better sent whole. It is made once for all streams.
func (t *sharedText) editOf(was *sharedText) (json.RawMessage, error) {
	if t.Mode != was.Mode || t.OwnedByUser != was.OwnedByUser {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	edit, known := t.edits[was.digest]
	if known {
		return edit, nil
	}
	edit, err := encode(difference(was.Text, t.Text))
	if err != nil {
		return nil, err
	}
	if len(edit) >= len(t.encoded) {
		edit = nil
	}
	t.edits[was.digest] = edit
	return edit, nil
}

// textList describes the texts of shares.
func textList() list[desiredParts] {
	return list[desiredParts]{
		name: "text",
		changes: func(before, after *desiredParts, emit emitter) error {
			old, next := differing(before.Shares, after.Shares)
			for _, t := range next {
				was := old[t.key]
				delete(old, t.key)
				if was == t || was != nil && was.digest == t.digest {
					continue
				}
				changed := item{Key: t.key, Value: t.encoded}
				if was != nil {
					edit, err := t.editOf(was)
					if err != nil {
						return err
					}
					if edit != nil {
						changed.Value, changed.Edit = nil, edit
					}
				}
				if err := emit(changed); err != nil {
					return err
				}
			}
			return emitGone(old, emit)
		},
		decode: func(raw json.RawMessage) (any, error) {
			t := new(sharedText)
			err := json.Unmarshal(raw, t)
			return t, err
		},
		edit: func(was any, raw json.RawMessage) (any, int, error) {
			var edits []splice
			if err := json.Unmarshal(raw, &edits); err != nil {
				return nil, 0, err
			}
			old := was.(*sharedText)
			text, err := spliced(old.Text, edits)
			return &sharedText{owner: old.owner, Path: old.Path, Mode: old.Mode, OwnedByUser: old.OwnedByUser, Text: text}, len(text), err
		},
		fill: func(into *desiredParts, elements []any) {
			for _, t := range elements {
				into.Texts = append(into.Texts, t.(*sharedText))
			}
		},
	}
}

// differing returns the texts of the shares before, by their keys, and of those after, but for shares that are in both.
func differing(before, after []*Share) (map[string]*sharedText, []*sharedText) {
	shares := map[*Share]bool{}
	for _, s := range before {
		shares[s] = true
	}
	var next []*sharedText
	for _, s := range after {
		if !shares[s] {
			next = append(next, s.texts...)
		}
		delete(shares, s)
	}
	old := map[string]*sharedText{}
	for s := range shares {
		for _, t := range s.texts {
			old[t.key] = t
		}
	}
	return old, next
}

// shares returns all shares of a node, in order.
func (d *Desired) shares() []*Share {
	shares := slices.Clone(d.Groups)
	for _, p := range d.Peers {
		shares = append(shares, p.Share)
	}
	return append(shares, d.Files...)
}

// Whole returns a desired state in which networks have their members on other nodes and members their files, and no share is left: what the agent is given.
func (d *Desired) Whole() (*Desired, error) {
	whole := *d
	whole.Peers, whole.Groups, whole.Files = nil, nil, nil
	var err error
	if whole.Networks, err = d.WholeNetworks(); err != nil {
		return nil, err
	}
	files := filesByCluster(d.Files)
	content := make(map[*Share][]driver.File, len(d.Files))
	for _, s := range d.Files {
		content[s] = s.content()
	}
	whole.Members = slices.Clone(d.Members)
	for i := range whole.Members {
		m := &whole.Members[i]
		s := files[m.Assignment.ClusterUID]
		if s == nil || !m.shares() {
			continue
		}
		m.FilesDigest = joinDigests(m.FilesDigest, s.digest)
		m.Files = slices.SortedFunc(slices.Values(slices.Concat(m.Files, content[s])), func(a, b driver.File) int {
			return cmp.Compare(a.Path, b.Path)
		})
	}
	return &whole, nil
}

// shares reports whether a member has files in common with the others of its cluster.
func (m *Member) shares() bool { return !m.Release && !m.Assignment.IsPart() }

func filesByCluster(files []*Share) map[string]*Share {
	of := make(map[string]*Share, len(files))
	for _, s := range files {
		of[s.of.Cluster] = s
	}
	return of
}

// sharesOf puts the shares of a node together from their texts, which are in the order of their keys.
func sharesOf(texts []*sharedText, selves map[int]netip.Addr) (peers []NodePeers, groups, files []*Share) {
	var s *Share
	for i, t := range texts {
		if i == 0 || s.of != t.owner {
			s = &Share{of: t.owner}
			switch {
			case t.Cluster != "":
				files = append(files, s)
			case t.Groups > 0:
				groups = append(groups, s)
			default:
				peers = append(peers, NodePeers{s, selves[t.Index]})
			}
		}
		s.texts = append(s.texts, t)
	}
	for _, s := range files {
		s.digest = FilesDigest(s.content())
	}
	return peers, groups, files
}

// FilesDigests returns the digests of the files that members should have, by assignment ID, as the agent will report them.
func (d *Desired) FilesDigests() map[string]string {
	files := filesByCluster(d.Files)
	digests := make(map[string]string, len(d.Members))
	for i := range d.Members {
		m := &d.Members[i]
		digests[m.Assignment.ID] = m.FilesDigest
		if s := files[m.Assignment.ClusterUID]; s != nil && m.shares() {
			digests[m.Assignment.ID] = joinDigests(m.FilesDigest, s.digest)
		}
	}
	return digests
}

// joinDigests names the files of a member by the digests of its own and of those it shares.
func joinDigests(own, shared string) string {
	sum := sha256.Sum256([]byte(own + " " + shared))
	return hex.EncodeToString(sum[:16])
}

// WholeNetworks returns the networks with their members on other nodes and their security groups, as the agent has them.
func (d *Desired) WholeNetworks() ([]fabric.Network, error) {
	remotes := map[int][]fabric.Remote{}
	for _, p := range d.Peers {
		elsewhere, err := p.remotes()
		if err != nil {
			return nil, err
		}
		remotes[p.of.Index] = elsewhere
	}
	groups := map[int][]fabric.Group{}
	for _, s := range d.Groups {
		var err error
		if groups[s.of.Groups], err = s.groups(); err != nil {
			return nil, err
		}
	}
	networks := slices.Clone(d.Networks)
	for i := range networks {
		networks[i].Remotes = remotes[networks[i].Index]
		networks[i].Groups = groups[networks[i].Index]
	}
	return networks, nil
}
