package apiserver

import (
	"context"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// Certifier signs people's keys for logins to the members of a cluster. Who asks is noted in the certificate.
type Certifier interface {
	Certify(intent api.ClusterIntent, key ssh.PublicKey, user string) (api.Certificate, error)
}

func (s *Server) certifyKey(ctx context.Context, in *namedBody) (*body[api.Certificate], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, src, err := readBody[api.CertificateRequest](in.body())
	if err != nil {
		return nil, err
	}
	key, problem := parseKey(req.PublicKey)
	if problem != "" {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "public_key", Line: src.Line("public_key"), Message: problem})
	}
	name := shownName(who(ctx), c.Name())
	if c.Intent.DeleteRequestedAt != nil {
		return nil, deleting(name)
	}
	if c.HeldTotal().Vector[resource.Clusters] == 0 {
		return nil, fail(codeWrongPhase, "cluster %q is %s and has no members to log in to", name, phaseOf(c))
	}
	cert, err := s.cfg.Certifier.Certify(c.Intent, key, userOf(ctx))
	if err != nil {
		return nil, err
	}
	return &body[api.Certificate]{cert}, nil
}

// maxKey is longer than any public key that is in use.
const maxKey = 16 << 10

// parseKey reads one line of authorized_keys, or tells what is wrong with it.
func parseKey(text string) (ssh.PublicKey, string) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return nil, "is missing; give the content of a .pub file, one line"
	case len(text) > maxKey:
		return nil, "is too long for a public key"
	case strings.Contains(text, "PRIVATE KEY"):
		return nil, "is a private key, which should never leave its machine; give the content of the .pub file beside it"
	case strings.ContainsAny(text, "\r\n"):
		return nil, "is more than one line; give one public key"
	}
	key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
	switch {
	case err != nil:
		return nil, "is not a public key; give the content of a .pub file, for example: ssh-ed25519 AAAA... me@laptop"
	case len(options) > 0:
		return nil, "has options of authorized_keys; give the key alone"
	}
	if _, isCert := key.(*ssh.Certificate); isCert {
		return nil, "is a certificate; give its public key"
	}
	if strings.HasPrefix(key.Type(), "ssh-dss") {
		return nil, "is a DSA key, which OpenSSH no longer accepts; make another key: ssh-keygen -t ed25519"
	}
	return key, ""
}
