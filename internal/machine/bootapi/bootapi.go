// Package bootapi is what machines talk to while they boot: they exchange their boot token, tell how far they are, report what they
// are made of, and are told what to do next.
//
// It checks who asks, keeps what it heard in memory for the leader's next plan (Heard), and stores only that a token was exchanged. It
// never decides what a machine boots, nor touches its power. Paths and messages are in package boot. Start with New, then hello.go.
package bootapi

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Reader is the stored state in memory. *state.Cache is one.
type Reader interface {
	View() *state.View
	WaitRevision(ctx context.Context, revision int64) (int64, error)
}

// Writer stores that a boot token was exchanged, and who came as a stranger. *state.Repo is one.
type Writer interface {
	RedeemBoot(ctx context.Context, redemption state.Redemption, identity *api.NodeIdentity) (int64, error)
	UpsertCandidate(ctx context.Context, mac string, change func(*api.Candidate)) (int64, error)
}

// Images are the manifests of built environments with the site's signatures.
type Images interface {
	// Manifest is the content and signature of a manifest; the error is fs.ErrNotExist when there is none.
	Manifest(digest image.Digest) (manifest, signature []byte, err error)
}

// Config is what the boot API needs.
type Config struct {
	Reader Reader
	Writer Writer
	Images Images
	Heard  *Heard
	// Secrets are the site's; keys are derived from them.
	Secrets trust.Secrets
	// Identify makes the identity of a machine's node agent, and its certificate, for the key of a certificate request. The error says
	// what is wrong with the request.
	Identify func(node, request string) (api.NodeIdentity, api.NodeCertificate, error)
	// PublicKey is what manifests are signed with.
	PublicKey []byte
	// At tells who is at an address of the provisioning network, and where its DHCP request came in; false when that is not known.
	At func(netip.Addr) (mac, port string, ok bool)
	// Proxy: another server gives the addresses, so that not everybody's is known. Without it a token from an unknown address is not taken.
	Proxy bool
	// Next is what network boot would give a machine now in the boot of a generation, whose DHCP request came in at port; nil while it would give it nothing.
	Next func(mac, port string, generation int64) *boot.Next
	// Peers are URLs of nodes that hold an image; empty while few fetch it.
	Peers func(digest image.Digest) []string
	// AgentBinary is the node agent that machines run, OpenAgent its content.
	AgentBinary image.Blob
	// AgentGzip is the same compressed, a blob of the image server; nil: there is none.
	AgentGzip *image.Blob
	OpenAgent func() (io.ReadSeekCloser, error)
	// OpenFiles opens an archive of the files of a member; the error is fs.ErrNotExist when there is none.
	OpenFiles func(digest image.Digest) (io.ReadSeekCloser, error)
	// AgentServer is HOST:PORT of the API at the server's address on the provisioning network.
	AgentServer string
	// StrangerImage is the manifest that strangers boot, "" while there is none.
	StrangerImage func() image.Digest
	// SiteTime is the site's clock.
	SiteTime func() time.Time
	Log      *slog.Logger
}

// Server answers booting machines.
type Server struct {
	cfg Config
	// sessionKeys are derived from each site secret, the newest first.
	sessionKeys [][]byte
	shares      shares
}

// New returns the boot API.
func New(cfg Config) (*Server, error) {
	var keys [][]byte
	for _, secret := range cfg.Secrets.NewestFirst() {
		key, err := hkdf.Key(sha256.New, secret, nil, "nearmetal boot session", sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("derive the key of boot sessions: %w", err)
		}
		keys = append(keys, key)
	}
	return &Server{cfg: cfg, sessionKeys: keys, shares: shares{by: map[image.Digest]map[string]shared{}}}, nil
}

// Handler serves the paths of package boot.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+boot.HelloPath, s.hello)
	mux.HandleFunc("POST "+boot.StagePath, s.stage)
	mux.HandleFunc("POST "+boot.SharePath, s.share)
	mux.HandleFunc("POST "+boot.ReportPath, s.report)
	mux.HandleFunc("POST "+boot.CleanPath, s.clean)
	mux.HandleFunc("GET "+boot.AgentBinaryPath, s.agentBinary)
	mux.HandleFunc("GET "+boot.FilesPath, s.files)
	return mux
}

const (
	// sessionLife is how long a machine may go on reporting in one boot.
	sessionLife = 24 * time.Hour
	// cleaningLife is the same for a boot that cleans: the largest disks take days to be overwritten and read back.
	cleaningLife = 14 * 24 * time.Hour
	// healthDeadline bounds each health check of a machine.
	healthDeadline = 60 * time.Second
)

// refusal is an error for a machine, shown on its console. do is as in boot.Instruction, empty for nothing but to try again.
type refusal struct {
	status int
	detail string
	do     string
}

func (r *refusal) Error() string { return r.detail }

func refuse(status int, format string, args ...any) error {
	return &refusal{status: status, detail: fmt.Sprintf(format, args...)}
}

// answer writes a value, or an error as problem details (RFC 9457).
func (s *Server) answer(w http.ResponseWriter, r *http.Request, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	status := http.StatusOK
	if err != nil {
		status = http.StatusInternalServerError
		var no *refusal
		do := ""
		if errors.As(err, &no) {
			status, do = no.status, no.do
		} else {
			s.cfg.Log.ErrorContext(r.Context(), "the boot API failed", "path", r.URL.Path, "error", err)
		}
		w.Header().Set("Content-Type", "application/problem+json")
		v = boot.Problem{Status: status, Title: http.StatusText(status), Detail: err.Error(), Do: do}
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a machine that went away asks again
}

func read[T any](w http.ResponseWriter, r *http.Request, maxBytes int64) (T, error) {
	var v T
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBytes)).Decode(&v); err != nil {
		return v, refuse(http.StatusBadRequest, "the message can't be read: %v", err)
	}
	return v, nil
}

// session tells which boot a request belongs to.
func (s *Server) session(r *http.Request) (boot.TokenClaims, error) {
	bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return boot.TokenClaims{}, refuse(http.StatusUnauthorized, "no session; open one with hello first")
	}
	claims, err := openAny(s.sessionKeys, bearer, s.cfg.SiteTime())
	if err != nil {
		return boot.TokenClaims{}, refuse(http.StatusUnauthorized, "the session is not valid: %v", err)
	}
	return claims, nil
}

func (s *Server) agentBinary(w http.ResponseWriter, r *http.Request) {
	if _, err := s.session(r); err != nil {
		s.answer(w, r, nil, err)
		return
	}
	f, err := s.cfg.OpenAgent()
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	defer func() { _ = f.Close() }()
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, f)
}

// openAny verifies a token by the first key that it was made with: boots go on while the site's secret is replaced.
func openAny(keys [][]byte, token string, now time.Time) (claims boot.TokenClaims, err error) {
	err = boot.ErrToken
	for _, key := range keys {
		if claims, err = boot.Open(key, token, now); !errors.Is(err, boot.ErrToken) {
			break
		}
	}
	return claims, err
}

// ConsolePassword is root's on a machine's console during one boot: 80 bits, derived from the site secret.
func ConsolePassword(secret []byte, uid string, generation int64) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "nearmetal console\x00%s\x00%d", uid, generation)
	text := strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil)[:10]))
	return text[:4] + "-" + text[4:8] + "-" + text[8:12] + "-" + text[12:]
}
