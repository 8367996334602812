// Package ufmtest stands in for UFM Enterprise: an HTTPS server that keeps partitions and their members as the guide of UFM's REST API says, and fails as
// networks and servers do.
//
// It must never be more helpful than the guide: it knows nothing of the executor. Start with New.
package ufmtest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
)

// Fault is what becomes of one request that changes something.
type Fault int

// The faults.
const (
	// Refuse answers 400 with text, and changes nothing.
	Refuse Fault = iota + 1
	// Break answers 500 with HTML after it has made the change.
	Break
	// Lie answers 200 and changes nothing.
	Lie
	// Half answers 200 and makes half of the change.
	Half
	// Vanish makes the change and closes the connection without an answer, as a restart does.
	Vanish
	// Late closes the connection without an answer, and makes the change at Settle.
	Late
	// Accept answers 200, and makes the change at Settle.
	Accept
)

// The user that the server knows, and its token.
const (
	User     = "nearmetal"
	Password = "secret"
	Token    = "dG9rZW4"
)

// Server is one UFM.
type Server struct {
	HTTP *httptest.Server

	mu         sync.Mutex
	partitions map[int]*Partition
	faults     []Fault
	late       []func()
	stuck      map[string]bool
	answer     string
	changes    []string
}

// Partition is one of UFM's.
type Partition struct {
	IPOverIB     bool
	MTULimit     int
	ServiceLevel int
	RateLimit    float64
	// Members are GUIDs, to whether the membership is limited.
	Members map[string]bool
}

// New starts a server, which has the management partition only.
func New() *Server {
	s := &Server{partitions: map[int]*Partition{0x7fff: {IPOverIB: true, Members: map[string]bool{}}}, stuck: map[string]bool{}}
	s.HTTP = httptest.NewTLSServer(s)
	return s
}

// Certificate is that of the server, in PEM.
func (s *Server) Certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.HTTP.Certificate().Raw})
}

// Next sets what becomes of the next requests that change something.
func (s *Server) Next(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, faults...)
}

// Settle makes the changes that were late.
func (s *Server) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, apply := range s.late {
		apply()
	}
	s.late = nil
}

// Answer makes the server answer lists of partitions with this text; "" ends that.
func (s *Server) Answer(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = text
}

// Plant adds a member, as somebody else would.
func (s *Server) Plant(key int, guid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.partition(key).Members[guid] = false
}

// Stick makes removals of a member answer 200 without effect.
func (s *Server) Stick(guid string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck[guid] = on
}

// Partition returns a copy of one of the partitions; nil if it is absent.
func (s *Server) Partition(key int) *Partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.partitions[key]
	if p == nil {
		return nil
	}
	same := *p
	same.Members = map[string]bool{}
	for guid, limited := range p.Members {
		same.Members[guid] = limited
	}
	return &same
}

// Changes are the methods and paths of all requests that changed something.
func (s *Server) Changes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.changes...)
}

func (s *Server) partition(key int) *Partition {
	if s.partitions[key] == nil {
		s.partitions[key] = &Partition{IPOverIB: true, Members: map[string]bool{}}
	}
	return s.partitions[key]
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, allowed := s.authorize(r)
	if !allowed {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet {
		s.list(w, r, path)
		return
	}
	apply, err := s.change(r, path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.changes = append(s.changes, r.Method+" "+path)
	var fault Fault
	if len(s.faults) > 0 {
		fault, s.faults = s.faults[0], s.faults[1:]
	}
	switch fault {
	case Refuse:
		http.Error(w, "Operation is not permitted now", http.StatusBadRequest)
		return
	case Break:
		apply(1)
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte("<html>\n<body>Internal Server Error</body></html>"))
		return
	case Vanish:
		apply(1)
		panic(http.ErrAbortHandler)
	case Late:
		s.late = append(s.late, func() { apply(1) })
		panic(http.ErrAbortHandler)
	case Half:
		apply(2)
	case Accept:
		s.late = append(s.late, func() { apply(1) })
	case Lie:
	default:
		apply(1)
	}
	_, _ = w.Write([]byte("{}"))
}

// authorize returns the path below the interface of the kind of credentials, and whether they are right.
func (s *Server) authorize(r *http.Request) (path string, allowed bool) {
	if rest, is := strings.CutPrefix(r.URL.Path, "/ufmRestV3/"); is {
		return rest, r.Header.Get("Authorization") == "Basic "+Token
	}
	rest, is := strings.CutPrefix(r.URL.Path, "/ufmRest/")
	user, password, ok := r.BasicAuth()
	return rest, is && ok && user == User && password == Password
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, path string) {
	if path != "resources/pkeys" || r.URL.Query().Get("guids_data") != "true" {
		http.NotFound(w, r)
		return
	}
	if s.answer != "" {
		_, _ = w.Write([]byte(s.answer))
		return
	}
	type member struct {
		GUID       string `json:"guid"`
		Membership string `json:"membership"`
		Index0     bool   `json:"index0"`
	}
	type entry struct {
		Partition string   `json:"partition"`
		IPOverIB  bool     `json:"ip_over_ib"`
		GUIDs     []member `json:"guids"`
	}
	all := map[string]entry{}
	for key, p := range s.partitions {
		e := entry{Partition: fmt.Sprintf("api_pkey_0x%x", key), IPOverIB: p.IPOverIB, GUIDs: []member{}}
		for guid, limited := range p.Members {
			membership := "full"
			if limited {
				membership = "limited"
			}
			e.GUIDs = append(e.GUIDs, member{GUID: guid, Membership: membership})
		}
		all[fmt.Sprintf("0x%x", key)] = e
	}
	_ = json.NewEncoder(w).Encode(all)
}

// body is that of requests which make a partition or add members.
type body struct {
	PKey         string   `json:"pkey"`
	IPOverIB     *bool    `json:"ip_over_ib"`
	MTULimit     int      `json:"mtu_limit"`
	ServiceLevel int      `json:"service_level"`
	RateLimit    float64  `json:"rate_limit"`
	GUIDs        []string `json:"guids"`
	Membership   string   `json:"membership"`
	Memberships  []string `json:"memberships"`
}

// change returns what a request does to its first members, all of them divided by a number, or why UFM refuses it.
func (s *Server) change(r *http.Request, path string) (func(divisor int), error) {
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(path, "resources/pkeys"), "/"), "/")
	switch {
	case r.Method == http.MethodDelete && len(parts) == 2:
		key, err := parseKey(parts[1])
		return func(int) { s.remove(key, nil) }, err
	case r.Method == http.MethodDelete && len(parts) == 4 && parts[2] == "guids":
		key, err := parseKey(parts[1])
		guids := strings.Split(parts[3], ",")
		return func(divisor int) { s.remove(key, guids[:(len(guids)+divisor-1)/divisor]) }, err
	case r.Method != http.MethodPost || len(parts) > 2 || len(parts) == 2 && parts[1] != "add":
		return nil, fmt.Errorf("%s %s is not supported", r.Method, path)
	}
	var b body
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		return nil, err
	}
	key, err := parseKey(b.PKey)
	if err != nil {
		return nil, err
	}
	if len(parts) == 2 {
		return func(int) { s.make(key, b) }, nil
	}
	if len(b.GUIDs) == 0 || len(b.Memberships) > 0 && len(b.Memberships) != len(b.GUIDs) {
		return nil, fmt.Errorf("guids are mandatory, and memberships must be as many")
	}
	return func(divisor int) { s.add(key, b, (len(b.GUIDs)+divisor-1)/divisor) }, nil
}

func (s *Server) make(key int, b body) {
	p := s.partition(key)
	p.IPOverIB = b.IPOverIB == nil || *b.IPOverIB
	p.MTULimit, p.ServiceLevel, p.RateLimit = b.MTULimit, b.ServiceLevel, b.RateLimit
}

func (s *Server) add(key int, b body, most int) {
	p := s.partition(key)
	p.IPOverIB = b.IPOverIB == nil || *b.IPOverIB
	for i, guid := range b.GUIDs[:most] {
		membership := b.Membership
		if len(b.Memberships) > 0 {
			membership = b.Memberships[i]
		}
		p.Members[guid] = membership == "limited"
	}
}

// remove removes members, or all with the partition.
func (s *Server) remove(key int, guids []string) {
	p := s.partitions[key]
	if p == nil {
		return
	}
	whole := guids == nil
	if whole {
		for guid := range p.Members {
			guids = append(guids, guid)
		}
	}
	for _, guid := range guids {
		if !s.stuck[guid] {
			delete(p.Members, guid)
		}
	}
	if whole && len(p.Members) == 0 {
		delete(s.partitions, key)
	}
}

func parseKey(text string) (int, error) {
	digits, is := strings.CutPrefix(text, "0x")
	n, err := strconv.ParseUint(digits, 16, 16)
	if !is || err != nil || n == 0 || n >= 0x7fff {
		return 0, fmt.Errorf("pkey must be a hexadecimal string between 0x0 and 0x7fff exclusive")
	}
	return int(n), nil
}
