package bootapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/crypto/bcrypt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/state"
)

// hello exchanges a boot token.
func (s *Server) hello(w http.ResponseWriter, r *http.Request) {
	hello, err := read[boot.Hello](w, r, maxHelloBytes)
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	welcome, err := s.welcome(r.Context(), r.RemoteAddr, hello)
	s.answer(w, r, welcome, err)
}

func (s *Server) welcome(ctx context.Context, from string, hello boot.Hello) (*boot.Welcome, error) {
	claims, err := openAny(s.cfg.Secrets.NewestFirst(), hello.Token, s.cfg.SiteTime())
	if err != nil {
		return nil, refuse(http.StatusUnauthorized, "the boot token is not valid: %v; boot again to get a new one", err)
	}
	if !slices.ContainsFunc(hello.MACs, func(mac string) bool { return strings.EqualFold(mac, claims.MAC) }) {
		return nil, refuse(http.StatusForbidden, "the boot token is for MAC %s, which is not a NIC of this machine", claims.MAC)
	}
	if err := s.checkOrigin(from, claims); err != nil {
		return nil, err
	}
	if hello.Nonce == "" {
		return nil, refuse(http.StatusBadRequest, "the nonce is missing")
	}
	life := sessionLife
	if claims.Purpose == api.BootClean {
		life = cleaningLife
	}
	welcome := &boot.Welcome{
		Purpose: claims.Purpose, Time: s.cfg.SiteTime(), HealthDeadline: healthDeadline, PublicKey: s.cfg.PublicKey,
		Session: boot.Seal(s.sessionKeys[0], withExpiry(claims, s.cfg.SiteTime().Add(life))),
	}
	if claims.Machine == "" {
		return welcome, s.welcomeStranger(claims, welcome)
	}
	return welcome, s.welcomeMachine(ctx, hello, claims, welcome)
}

// checkOrigin refuses a token that comes from another machine, or over another port, than it was made for: DHCP has seen who is where.
func (s *Server) checkOrigin(from string, claims boot.TokenClaims) error {
	address, err := netip.ParseAddrPort(from)
	if err != nil {
		return refuse(http.StatusForbidden, "the source address %q can't be read", from)
	}
	mac, port, known := s.cfg.At(address.Addr().Unmap())
	switch {
	case !known && s.cfg.Proxy: // another DHCP server's
		return nil
	case !known: // all addresses are ours: somebody took one, or this server has just started and will know soon
		return refuse(http.StatusServiceUnavailable, "the address %s is not leased; retry, or boot again to get another address", address.Addr())
	case mac != claims.MAC:
		return refuse(http.StatusForbidden, "the boot token is for MAC %s, but MAC %s is at %s", claims.MAC, mac, address.Addr())
	case port != claims.Port:
		return refuse(http.StatusForbidden, "the boot token is for port %q, but MAC %s was last seen at port %q", claims.Port, mac, port)
	}
	return nil
}

// welcomeStranger lets an unknown machine tell what it is, and nothing else.
func (s *Server) welcomeStranger(claims boot.TokenClaims, welcome *boot.Welcome) error {
	if m := s.cfg.Reader.View().MachineByMAC(claims.MAC); m != nil {
		return refuse(http.StatusGone, "MAC %s now belongs to machine %s; boot again", claims.MAC, m.Name())
	}
	return s.addManifest(welcome, s.cfg.StrangerImage())
}

// welcomeMachine gives a known machine what its boot is for.
func (s *Server) welcomeMachine(ctx context.Context, hello boot.Hello, claims boot.TokenClaims, welcome *boot.Welcome) error {
	m := s.cfg.Reader.View().MachineByUID(claims.Machine)
	if m == nil || m.Record == nil || m.Record.Boot == nil || m.Record.Boot.Generation != claims.Generation || !lifecycle.MayBoot(m.Record) {
		return s.over(claims)
	}
	b := m.Record.Boot
	welcome.Name = m.Name()
	if err := s.addManifest(welcome, image.Digest(b.Digest)); err != nil {
		return err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(ConsolePassword(s.cfg.Secrets.At(b.DecidedAt), m.UID(), b.Generation)), bcrypt.MinCost)
	if err != nil {
		return fmt.Errorf("make the console's password: %w", err)
	}
	welcome.RootPasswordHash = string(hash)
	nonce := sha256.Sum256([]byte(hello.Nonce))
	redemption := state.Redemption{UID: m.UID(), Machine: m.Name(), Generation: b.Generation, NonceSHA256: hex.EncodeToString(nonce[:]), At: s.cfg.SiteTime()}
	if f := b.Files; f != nil && b.Purpose == api.BootMember {
		welcome.Files = &image.Blob{Digest: image.Digest(f.Digest), SizeBytes: f.Bytes}
	}
	if b.Purpose == api.BootClean {
		if welcome.Clean = cleanOrder(m); welcome.Clean == nil {
			return s.over(claims)
		}
	}
	var identity *api.NodeIdentity
	if b.Purpose == api.BootEnvironment || b.Purpose == api.BootMember {
		made, certificate, err := s.cfg.Identify(m.Name(), hello.Request)
		if err != nil {
			return refuse(http.StatusBadRequest, "%v", err)
		}
		made.Boot, made.EnrolledBy, made.ApprovedBy, made.ApprovedAt = b.Generation, "its boot", "its boot", &redemption.At
		made.Member = b.Member
		identity, certificate.Approved = &made, true
		welcome.Agent = &boot.Agent{
			Binary: s.cfg.AgentBinary, Gzip: s.cfg.AgentGzip, Certificate: certificate, Server: s.cfg.AgentServer,
			Labels: m.Intent.Spec.Labels, TrunkMAC: m.Intent.Spec.TrunkMAC, Adapters: m.Intent.Spec.Adapters, Passthrough: m.Intent.Spec.Passthrough, Generation: b.Generation,
		}
	}
	revision, err := s.cfg.Writer.RedeemBoot(ctx, redemption, identity)
	if errors.Is(err, state.ErrRedeemed) {
		// It comes from the machine's own NIC and port: it was reset or crashed in the middle of its boot, and gets on in another generation only.
		s.cfg.Heard.startedAnew(m.UID(), b.Generation)
		return refuse(http.StatusConflict, "%v; if this is the machine itself, boot again", err)
	}
	if errors.Is(err, state.ErrBootOver) {
		return s.over(claims)
	}
	if err != nil {
		return err
	}
	// The agent's identity is known once the view has it; an agent that came earlier would be turned away.
	if _, err := s.cfg.Reader.WaitRevision(ctx, revision); err != nil {
		return err
	}
	s.cfg.Heard.redeemed(m.UID(), b.Generation, redemption.At)
	return nil
}

// over refuses a token whose boot does not go on, and tells its machine, which it is, what to do: it runs, and nobody else may be able to reach it.
func (s *Server) over(claims boot.TokenClaims) error {
	no := &refusal{status: http.StatusGone, detail: "the boot token is from an earlier boot; that boot is no longer wanted"}
	if told := s.instruct(claims, false); told.Do == doReboot || told.Do == doPowerOff {
		no.do = told.Do
	}
	return no
}

// addManifest adds what the machine boots, for those that boot an image.
func (s *Server) addManifest(welcome *boot.Welcome, digest image.Digest) error {
	if digest == "" {
		return nil
	}
	manifest, signature, err := s.cfg.Images.Manifest(digest)
	if errors.Is(err, fs.ErrNotExist) {
		return refuse(http.StatusGone, "the image %s no longer exists; boot again", digest)
	}
	if err != nil {
		return err
	}
	welcome.Manifest, welcome.Signature, welcome.Peers = manifest, signature, s.cfg.Peers(digest)
	return nil
}
