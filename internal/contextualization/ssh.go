package contextualization

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/sshca"
)

// sshdConfig is made for many quick logins at once: an MPI launch over n members opens up to n sessions on one. Options are
// described in sshd_config(5).
func (r *Renderer) sshdConfig() string {
	var env strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.env)) {
		fmt.Fprintf(&env, " %s=%s", name, r.env[name])
	}
	return `# Generated. Members of the cluster log in by certificates of its authority.
HostKey ` + hostKeyPath + `
HostCertificate ` + hostKeyPath + `-cert.pub
TrustedUserCAKeys ` + caPath + `
AuthorizedPrincipalsFile ` + principalsDir + `/%u
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
HostbasedAuthentication no
PermitRootLogin ` + r.rootLogin() + `
# An account without an entry in shadow is not locked; no PAM, no names of clients, no messages: they cost time at each login.
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
LogLevel ERROR
# One connection may carry many sessions. How many connections there may be is not limited: each has its own sshd.
MaxSessions 1024
LoginGraceTime 60
X11Forwarding no
# People reach what listens on the member's loopback interface. Nothing of theirs is reached from the member.
AllowTcpForwarding local
PermitOpen localhost:* 127.0.0.1:* [::1]:*
AllowStreamLocalForwarding no
PermitTunnel no
AcceptEnv LANG LC_*
SetEnv` + env.String() + `
Subsystem sftp internal-sftp
`
}

// rootLogin is whether root may log in: on whole machines, which alone have a list of principals for root.
func (r *Renderer) rootLogin() string {
	if slices.ContainsFunc(r.members, func(m api.Assignment) bool { return m.Stack == api.StackMetal }) {
		return "prohibit-password"
	}
	return "no"
}

// sshConfig applies to the cluster's members only; for hosts of the outside ssh behaves as usual.
func (r *Renderer) sshConfig() string {
	return `# Generated. For members of this cluster, by name or address.
Host ` + strings.Join(r.hostPatterns(), " ") + `
  User ` + r.cluster.User.Name + `
  IdentityFile ` + userKeyPath + `
  CertificateFile ` + userKeyPath + `-cert.pub
  IdentitiesOnly yes
  PreferredAuthentications publickey
  HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com
  KexAlgorithms curve25519-sha256
  StrictHostKeyChecking yes
  UserKnownHostsFile /dev/null
  UpdateHostKeys no
  GSSAPIAuthentication no
  LogLevel ERROR

Host *
  SendEnv LANG LC_*
  HashKnownHosts yes
`
}

// hostPatterns matches the members' names, and the addresses of their subnet a /24 a pattern: ssh_config knows no prefixes.
func (r *Renderer) hostPatterns() []string {
	patterns := make([]string, 0, len(r.members)+16)
	for _, m := range r.members {
		patterns = append(patterns, m.Member)
	}
	prefix := r.cluster.Network.Prefix.Masked()
	if !prefix.Addr().Is4() || prefix.Bits() < 16 || prefix.Bits() > 24 {
		for _, m := range r.members {
			patterns = append(patterns, m.Address().String())
		}
		return patterns
	}
	address := prefix.Addr().As4()
	first := binary.BigEndian.Uint32(address[:])
	for i := range uint32(1) << (24 - prefix.Bits()) {
		binary.BigEndian.PutUint32(address[:], first+i<<8)
		patterns = append(patterns, strings.TrimSuffix(netip.AddrFrom4(address).String(), "0")+"*")
	}
	return patterns
}

// principals are who may log in as the user: the user of the assignments that the cluster holds, and people, whose certificates the
// authority signs for a short time only.
func (r *Renderer) principals() string {
	var b strings.Builder
	for _, m := range r.members {
		fmt.Fprintln(&b, m.ID)
	}
	fmt.Fprintln(&b, sshca.People)
	return b.String()
}
