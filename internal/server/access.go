package server

import (
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/nearmetal/nearmetal/api"
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

func (c certifier) Certify(intent api.ClusterIntent, key ssh.PublicKey, user string) (api.Certificate, error) {
	authority, err := sshca.New(c.secrets.At(intent.CreatedAt), intent.UID, intent.CreatedAt)
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
