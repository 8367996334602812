// Package contextualization renders what makes an environment's root a member of a cluster: names, accounts, SSH, hostfile.
//
// It is pure: the same input gives the same bytes, so files are compared to find what an update has to change. It must never
// see the host, and puts nothing into a member that another member or cluster could use against a third: the keys in a
// member's files are that member's own. Start with New, then Renderer.Shared and Renderer.Own.
//
// SSH: every member has a host key and its user has a key, both certified by the cluster's authority (package sshca), so any
// member's user reaches any other by name or address without a prompt. Keys lie in /etc, not in the shared home, where
// another member could take them. Root can't log in: MPI needs no root, and a certificate that the user can read must not
// make root of it.
//
// TLS: a member's user has a certificate of the cluster's authority (package membercert), and so has the root of a whole machine, for its member
// agent's link. They follow from the time as well: a day later, the same member has later ones, and the same keys.
//
// Slurm: where environments carry it, the cluster has one of its own, with a key for munge that only the members' root can read.
//
// What a driver has to provide is written in docs/decisions/010-what-a-member-needs.md.
package contextualization

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/member/membercert"
	"github.com/nearmetal/nearmetal/internal/sshca"
)

// Where things lie in a member.
const (
	HostfilePath = "/etc/nearmetal/hostfile"
	nodelistPath = "/etc/nearmetal/nodelist"
	userKeyPath  = "/etc/nearmetal/ssh/id_ed25519"
	hostKeyPath  = "/etc/ssh/ssh_host_ed25519_key"
	caPath       = "/etc/ssh/nearmetal_ca.pub"
	knownPath    = "/etc/ssh/ssh_known_hosts"
	// principalsDir holds a file per account that may log in, with the assignments that are its owner.
	principalsDir = "/etc/ssh/authorized_principals"
	// In tlsDir are the member's certificates. Those of the workload are for what its user runs.
	tlsDir           = "/etc/nearmetal/tls"
	tlsAuthorityPath = tlsDir + "/ca.crt"
	memberCertPath   = tlsDir + "/member"
	workloadCertPath = tlsDir + "/workload"
	// userDataPath is what a member's user gives cloud-init. It is for those who start the member, and never gets there.
	userDataPath = "/etc/nearmetal/user-data"
	shell        = "/bin/bash"
)

// Cluster is what the files of all members follow from.
type Cluster struct {
	Name      string
	Authority *sshca.Authority
	// Certificates certifies members for TLS, for the period that Now is in.
	Certificates *membercert.Authority
	Now          time.Time
	Network      api.Network
	// Joined are the project's networks that the cluster joined.
	Joined []api.Network
	// Members are all held assignments, those being released left out; their order does not matter.
	Members []api.Assignment
	User    driver.User
	// GPUServers are the servers of members' remote GPUs, parts of those members.
	GPUServers []api.Assignment
	// Slurm is nil where no member's environment carries it.
	Slurm *Slurm
	// UserData is what groups give cloud-init in their members, by group.
	UserData map[string]string
	// DatasetURLs are the URLs of the datasets that members read by URL, by assignment and dataset.
	DatasetURLs map[string]map[string][]string
	// Neighbours are members of other clusters on networks that this one joined.
	Neighbours []Neighbour
	// Records are names of the project's own on networks that this cluster joined.
	Records []api.NetworkRecord
	// Nameservers resolve names of the outside, for members with a way out; without any, members know each other only.
	Nameservers []netip.Addr
}

// Neighbour is a member of another cluster of the project, by its address on a network that both clusters joined.
type Neighbour struct {
	Member, Cluster string
	Address         netip.Addr
}

// Renderer renders the files of a cluster's members. What they share is rendered once.
type Renderer struct {
	cluster Cluster
	members []api.Assignment // by rank
	period  membercert.Period
	env     map[string]string
	shared  []driver.File
}

// New checks the cluster and renders the shared files.
func New(cluster Cluster) (*Renderer, error) {
	members := slices.Clone(cluster.Members)
	slices.SortFunc(members, func(a, b api.Assignment) int { return a.Rank - b.Rank })
	if err := check(cluster, members); err != nil {
		return nil, fmt.Errorf("files of cluster %q can't be rendered: %w", cluster.Name, err)
	}
	r := &Renderer{cluster: cluster, members: members, period: cluster.Certificates.Period(cluster.Now)}
	r.env = r.environment()
	r.shared = byPath(r.renderShared())
	return r, nil
}

// Files returns the generated files of a member, sorted by path. The content is shared among
// members and must not be changed.
func (r *Renderer) Files(assignmentID string) ([]driver.File, error) {
	i := slices.IndexFunc(r.members, func(m api.Assignment) bool { return m.ID == assignmentID })
	if i < 0 {
		return nil, fmt.Errorf("assignment %s is not among those of cluster %q", assignmentID, r.cluster.Name)
	}
	own, err := r.Own(r.members[i])
	if err != nil {
		return nil, err
	}
	return byPath(append(own, r.shared...)), nil
}

// Shared returns the files that are the same in every member, sorted by path. They must not be changed.
func (r *Renderer) Shared() []driver.File { return r.shared }

// Own returns the files of one of the cluster's members that no other has, sorted by path: those with its name and its keys. While OwnBasis
// stays the same, so do they.
func (r *Renderer) Own(m api.Assignment) ([]driver.File, error) {
	render := r.renderOwn
	if m.ServesGPU() {
		render = r.renderGPUServer
	}
	own, err := render(m)
	return byPath(own), err
}

// OwnBasis names all of a cluster that the files of one member follow from. Other members come and go without changing it.
func (r *Renderer) OwnBasis() string {
	user := r.cluster.User
	return fmt.Sprintf("%q %q %d %d %q %d %v %v", r.cluster.Name, user.Name, user.UID, user.GID, r.profileEnv(), r.period.From.Unix(), r.cluster.Nameservers, r.gpuServers())
}

// GoodUntil returns when the files are to be rendered again though nothing but time has changed.
func (r *Renderer) GoodUntil() time.Time { return r.period.Until }

func byPath(files []driver.File) []driver.File {
	slices.SortFunc(files, func(a, b driver.File) int { return strings.Compare(a.Path, b.Path) })
	return files
}

// UserHome is where a user's home is in a member: in the shared home.
func UserHome(user driver.User) string { return "/home/" + user.Name }

// check refuses what would render files that lie; all of it is checked where it is entered, too.
func check(cluster Cluster, members []api.Assignment) error {
	if cluster.Authority == nil {
		return errors.New("it has no SSH authority")
	}
	if cluster.Certificates == nil {
		return errors.New("it has no authority of certificates")
	}
	if cluster.Slurm != nil {
		if err := cluster.Slurm.check(); err != nil {
			return err
		}
	}
	if cluster.User.Name == "" || cluster.User.Name == "root" || cluster.User.UID == 0 {
		return fmt.Errorf("user %q (%d) is not an unprivileged one", cluster.User.Name, cluster.User.UID)
	}
	names, addresses := map[string]bool{}, map[netip.Addr]bool{}
	for i, m := range members {
		switch {
		case m.Member == "" || strings.ContainsAny(m.Member, " \t\n#,*?!\"\\/"):
			return fmt.Errorf("%q is no name for a member", m.Member)
		case names[m.Member]:
			return fmt.Errorf("two members are called %s", m.Member)
		case !m.Address().IsValid() || addresses[m.Address()]:
			return fmt.Errorf("member %s has no address of its own (%v)", m.Member, m.Address())
		case i > 0 && m.Rank == members[i-1].Rank:
			return fmt.Errorf("members %s and %s both have rank %d", members[i-1].Member, m.Member, m.Rank)
		case len(m.Slots) == 0:
			return fmt.Errorf("member %s has no cores", m.Member)
		}
		names[m.Member], addresses[m.Address()] = true, true
	}
	for _, n := range cluster.Neighbours {
		if !isLabel(n.Member) || !isLabel(n.Cluster) || !n.Address.IsValid() {
			return fmt.Errorf("%q of cluster %q at %v is no neighbour", n.Member, n.Cluster, n.Address)
		}
	}
	return nil
}

// isLabel reports whether a name can stand in a hosts file as one label.
func isLabel(name string) bool { return name != "" && !strings.ContainsAny(name, " \t\n#,*?!\"\\/.") }
