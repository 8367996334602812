package server

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/member/membercert"
	"github.com/nearmetal/nearmetal/internal/member/mungekey"
	"github.com/nearmetal/nearmetal/internal/sshca"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// certificateValidity is how long a login with a certificate for people can begin; it does not end logins.
const certificateValidity = 10 * time.Minute

// certifier signs people's keys by the clusters' authorities, which derive from the site secret.
type certifier struct {
	secrets trust.Secrets
	user    string
	now     func() time.Time
}

// secretOf returns the site secret that a cluster's keys derive from.
func (c certifier) secretOf(intent api.ClusterIntent) []byte { return c.secrets.At(intent.CreatedAt) }

// keysOf returns marks of the keys that a member has from the site, as the leader renders them (package contextualization).
func (c certifier) keysOf(intent api.ClusterIntent, a api.Assignment) ([][]byte, error) {
	secret := c.secretOf(intent)
	logins, err := sshca.New(secret, intent.UID, intent.CreatedAt)
	if err != nil {
		return nil, err
	}
	certificates, err := membercert.New(secret, intent.UID)
	if err != nil {
		return nil, err
	}
	host, err1 := logins.Host(a.ID, []string{a.Member, a.Address().String()})
	user, err2 := logins.User(a.ID)
	member, err3 := certificates.Member(a.ID, certificates.Period(c.now()))
	workload, err4 := certificates.Workload(a.ID, []string{a.Member}, []netip.Addr{a.Address()}, certificates.Period(c.now()))
	munge, err5 := mungekey.Derive(secret, intent.UID)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, fmt.Errorf("the keys of member %s: %w", a.ID, err)
	}
	return changedfiles.Marks(host.PrivateKey, user.PrivateKey, member.Key, workload.Key, munge), nil
}

func (c certifier) Certify(intent api.ClusterIntent, key ssh.PublicKey, user string) (api.Certificate, error) {
	authority, err := sshca.New(c.secretOf(intent), intent.UID, intent.CreatedAt)
	if err != nil {
		return api.Certificate{}, err
	}
	cert, err := authority.CertifyUser(ssh.MarshalAuthorizedKey(key), user, certificateValidity, c.now())
	if err != nil {
		return api.Certificate{}, err
	}
	return api.Certificate{
		Certificate: string(cert.Line), ValidUntil: cert.ValidUntil, KnownHosts: string(authority.KnownHosts()), User: c.user,
	}, nil
}
