package contextualization

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/sshca"
)

// renderShared renders the files that are the same in every member.
func (r *Renderer) renderShared() []driver.File {
	var hostfile, nodelist strings.Builder
	for _, m := range r.members {
		fmt.Fprintf(&hostfile, "%s slots=%d\n", m.Member, len(m.Slots))
		fmt.Fprintln(&nodelist, m.Member)
	}
	user := r.cluster.User
	files := []driver.File{
		public("/etc/hosts", r.hosts()),
		public("/etc/passwd", passwd(user)),
		public("/etc/group", group(user)),
		public("/etc/profile", profile),
		public("/etc/profile.d/nearmetal.sh", r.profileEnv()),
		public(HostfilePath, hostfile.String()),
		public(nodelistPath, nodelist.String()),
		public("/etc/ssh/sshd_config", r.sshdConfig()),
		public("/etc/ssh/ssh_config", r.sshConfig()),
		public(caPath, string(r.cluster.Authority.PublicKey())),
		public(knownPath, string(r.cluster.Authority.KnownHosts())),
		public(principalsDir+"/"+user.Name, r.principals()),
		public(tlsAuthorityPath, string(r.cluster.Certificates.Certificate())),
	}
	if r.cluster.Slurm != nil {
		files = append(files, r.slurmFiles()...)
	}
	return files
}

// renderOwn renders the files of one member.
func (r *Renderer) renderOwn(m api.Assignment) ([]driver.File, error) {
	host, err := r.cluster.Authority.Host(m.ID, []string{m.Member, m.Address().String()})
	if err != nil {
		return nil, err
	}
	user, err := r.cluster.Authority.User(m.ID)
	if err != nil {
		return nil, err
	}
	workload, err := r.cluster.Certificates.Workload(m.ID, []string{m.Member}, []netip.Addr{m.Address()}, r.period)
	if err != nil {
		return nil, err
	}
	var link *memberconfig.Link
	if m.Stack == api.StackVM {
		link = &memberconfig.Link{Kind: memberconfig.LinkSerial, Address: memberconfig.SerialPort}
	}
	config, err := json.MarshalIndent(memberconfig.File{
		AssignmentID: m.ID, Cluster: r.cluster.Name, Member: m.Member, Address: m.Address(), Hostfile: HostfilePath, Env: r.env,
		User: memberconfig.User{
			Name: r.cluster.User.Name, UID: r.cluster.User.UID, GID: r.cluster.User.GID, Home: UserHome(r.cluster.User), Shell: shell,
		},
		Link: link,
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	files := []driver.File{
		public("/etc/hostname", m.Member+"\n"),
		public("/etc/nsswitch.conf", nsswitch(r.resolves(m))),
		public(memberconfig.Path, string(config)+"\n"),
		{Path: hostKeyPath, Content: host.PrivateKey, Mode: 0o600},
		public(hostKeyPath+".pub", string(host.PublicKey)),
		public(hostKeyPath+"-cert.pub", string(host.Certificate)),
		{Path: userKeyPath, Content: user.PrivateKey, Mode: 0o600, OwnedByUser: true},
		public(userKeyPath+".pub", string(user.PublicKey)),
		public(userKeyPath+"-cert.pub", string(user.Certificate)),
		{Path: workloadCertPath + ".key", Content: workload.Key, Mode: 0o600, OwnedByUser: true},
		public(workloadCertPath+".crt", string(workload.Certificate)),
	}
	files = append(files, r.gpuFiles(&m)...)
	files = append(files, r.datasetFiles(&m)...)
	if r.resolves(m) {
		files = append(files, public("/etc/resolv.conf", r.resolvConf()))
	}
	if data := r.cluster.UserData[m.Group]; data != "" {
		files = append(files, driver.File{Path: userDataPath, Content: []byte(data), Mode: 0o600})
	}
	if m.Stack != api.StackMetal {
		return files, nil // its node agent knows it by a socket, which nobody else has: there is nothing to show a certificate to
	}
	member, err := r.cluster.Certificates.Member(m.ID, r.period)
	if err != nil {
		return nil, err
	}
	return append(files,
		public(principalsDir+"/root", sshca.People+"\n"), // the whole machine is theirs; members log in to each other as the user only
		driver.File{Path: memberCertPath + ".key", Content: member.Key, Mode: 0o600}, public(memberCertPath+".crt", string(member.Certificate))), nil
}

// public is a file that root owns and everybody may read.
func public(path, content string) driver.File {
	return driver.File{Path: path, Content: []byte(content), Mode: 0o644}
}

// environment is what logins and jobs have in their environment. It is told by the environment and not by Open MPI's
// parameter files, since an image may bring its own Open MPI elsewhere, and files of the image and the user stay as they are.
func (r *Renderer) environment() map[string]string {
	env := map[string]string{
		"NEARMETAL_CLUSTER":              r.cluster.Name,
		"NEARMETAL_HOSTFILE":             HostfilePath,
		"NEARMETAL_NODELIST":             nodelistPath,
		"OMPI_MCA_orte_default_hostfile": HostfilePath, // Open MPI up to 4
		"PRTE_MCA_prte_default_hostfile": HostfilePath, // Open MPI 5, whose launcher is PRRTE
	}
	if slices.ContainsFunc(r.members, func(m api.Assignment) bool { return m.Oversubscribed }) {
		// Ranks that share a core would each wait for the other by spinning, a scheduler's time slice a message.
		env["OMPI_MCA_mpi_yield_when_idle"] = "1"
	}
	if r.exchangesByMemory() {
		maps.Copy(env, ranksByMemory)
	}
	return env
}

// ranksByMemory has Open MPI 4 and 5 use UCX, which finds out by itself, pair by pair, whether two ranks share memory. Debian's parameter files
// leave UCX out, and Open MPI uses it for InfiniBand alone, unless told otherwise.
var ranksByMemory = map[string]string{
	"LD_PRELOAD":                       memberconfig.RankLibrary,
	"OMPI_MCA_pml":                     "^v", // any but v: Debian says ^ucx
	"OMPI_MCA_opal_common_ucx_tls":     "any",
	"OMPI_MCA_opal_common_ucx_devices": "any",
	// Each rank connects to all others at its start. UCX polls a way once it has sent by it; until then it waits for a signal that comes by an
	// abstract Unix socket, and these do not reach from one network namespace to another.
	"OMPI_MCA_mpi_add_procs_cutoff": "2147483647",
}

// mostConnectedRanks is up to how many ranks that is well: each has a connection to each of those that it shares no memory with.
const mostConnectedRanks = 256

// exchangesByMemory tells whether ranks in every member can use memory, and are few enough.
func (r *Renderer) exchangesByMemory() bool {
	ranks := 0
	for i := range r.members {
		if !r.members[i].SharesMemory {
			return false
		}
		ranks += len(r.members[i].Slots)
	}
	return ranks <= mostConnectedRanks
}

func (r *Renderer) hosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n")
	for _, m := range r.members {
		fmt.Fprintf(&b, "%s\t%s\n", m.Address(), m.Member)
	}
	neighbours := slices.Clone(r.cluster.Neighbours)
	slices.SortFunc(neighbours, func(a, b Neighbour) int {
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Member, b.Member), a.Address.Compare(b.Address))
	})
	for _, n := range neighbours {
		fmt.Fprintf(&b, "%s\t%s.%s\n", n.Address, n.Member, n.Cluster)
	}
	r.addRecords(&b)
	return b.String()
}

// addRecords adds the records of networks that no member has the name of.
func (r *Renderer) addRecords(b *strings.Builder) {
	taken := map[string]bool{}
	for _, m := range r.members {
		taken[m.Member] = true
		taken[m.Member+"."+r.cluster.Name] = true
	}
	for _, n := range r.cluster.Neighbours {
		taken[n.Member+"."+n.Cluster] = true
	}
	var lines []string
	for _, record := range r.cluster.Records {
		if taken[record.Name] {
			continue
		}
		for _, address := range record.Addresses {
			lines = append(lines, fmt.Sprintf("%s\t%s\t%s\n", address, record.Name, api.RecordMark))
		}
	}
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) { // networks may say the same
		b.WriteString(line)
	}
}

// passwd has what a member needs: "*" is a password that none matches and does not lock the account, for sshd.
func passwd(user driver.User) string {
	return "root:*:0:0:root:/root:" + shell + "\n" +
		"daemon:*:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
		"sshd:*:101:65534:sshd:/run/sshd:/usr/sbin/nologin\n" +
		fmt.Sprintf("%s:*:%d:%d:%s:%s:%s\n", user.Name, user.UID, user.GID, user.Name, UserHome(user), shell) +
		"nobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
}

// group numbers are Debian's; sshd gives terminals to the group tty.
func group(user driver.User) string {
	return "root:*:0:\ndaemon:*:1:\ntty:*:5:\nutmp:*:43:\nstaff:*:50:\nusers:*:100:\n" +
		fmt.Sprintf("%s:*:%d:\n", user.Name, user.GID) + "nogroup:*:65534:\n"
}

// resolves reports whether a member can ask for names of the outside: it has a way out.
func (r *Renderer) resolves(m api.Assignment) bool {
	var networks []api.Network
	for _, n := range slices.Concat([]api.Network{r.cluster.Network}, r.cluster.Joined) {
		if slices.ContainsFunc(m.Ports, func(p api.PortClaim) bool { return p.Network == n.UID }) {
			networks = append(networks, n)
		}
	}
	return api.WayOut(networks) >= 0 && len(r.cluster.Nameservers) > 0
}

func nsswitch(resolves bool) string {
	hosts := "files"
	if resolves {
		hosts = "files dns"
	}
	return "passwd: files\ngroup: files\nshadow: files\nhosts: " + hosts +
		"\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n"
}

func (r *Renderer) resolvConf() string {
	var b strings.Builder
	for _, server := range r.cluster.Nameservers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	return b.String()
}

const profile = `# Generated. Read by login shells.
if [ "$(id -u)" -eq 0 ]; then
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
else
  PATH=/usr/local/bin:/usr/bin:/bin
fi
export PATH
[ -z "$BASH" ] || [ -z "$PS1" ] || PS1='\u@\h:\w\$ '
for file in /etc/profile.d/*.sh; do
  [ ! -r "$file" ] || . "$file"
done
unset file
`

// profileEnv is for login shells that sshd did not start; those have the same from sshd.
func (r *Renderer) profileEnv() string {
	var b strings.Builder
	b.WriteString("# Generated: what every login and job on this cluster has.\n")
	for _, name := range slices.Sorted(maps.Keys(r.env)) {
		fmt.Fprintf(&b, "export %s='%s'\n", name, strings.ReplaceAll(r.env[name], "'", `'\''`))
	}
	return b.String()
}
