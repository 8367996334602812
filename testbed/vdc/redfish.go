package vdc

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	serviceRoot  = "/redfish/v1"
	systemsPath  = "/redfish/v1/Systems"
	sessionsPath = "/redfish/v1/SessionService/Sessions"
	// sessionIdle is after how much silence a session ends.
	sessionIdle = 5 * time.Minute
)

// redfishProxy stands before sushy-tools as one machine's BMC. It adds the session service, which sushy-tools lacks, takes HttpBootUri
// as a BMC does, and has the faults.
type redfishProxy struct {
	// system is the UUID of the only system it shows of those sushy-tools has.
	system         string
	fault          *bmcFault
	user, password string
	backend        *httputil.ReverseProxy
	// setBoot tells the firmware to boot from a URI next, or as always when it is empty.
	setBoot func(ctx context.Context, uri string) error

	mu       sync.Mutex
	sessions map[string]redfishSession
	// bootURI is what the system was told to boot by UEFI HTTP boot.
	bootURI string
}

type redfishSession struct {
	id   string
	used time.Time
}

// newRedfishProxy forwards to backend, an address.
func newRedfishProxy(backend, system string, fault *bmcFault, user, password string) *redfishProxy {
	p := &redfishProxy{system: system, fault: fault, user: user, password: password, sessions: map[string]redfishSession{}}
	p.backend = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: backend})
			r.Out.Host = r.In.Host
		},
		ModifyResponse: p.amend,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			redfishError(w, http.StatusBadGateway, "Base.1.0.InternalError", "the emulator behind the BMC: "+err.Error())
		},
	}
	return p
}

// ServeHTTP answers as the BMC.
func (p *redfishProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := p.fault.get()
	switch fault.Kind {
	case FaultSilent:
		<-r.Context().Done()
		return
	case FaultSlow:
		select {
		case <-time.After(fault.Delay):
		case <-r.Context().Done():
			return
		}
	case FaultGarbage:
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html><body>BMC web console: JavaScript needed</body></html>")
		return
	}
	path := strings.TrimSuffix(r.URL.Path, "/")
	open := r.Method == http.MethodGet && (path == "/redfish" || path == serviceRoot)
	switch {
	case r.Method == http.MethodPost && path == sessionsPath:
		p.openSession(w, r, fault)
		return
	case open:
		r.SetBasicAuth(p.user, p.password)
	case fault.Kind == FaultRefuse || !p.authenticate(r):
		w.Header().Set("WWW-Authenticate", `Basic realm="Redfish"`)
		redfishError(w, http.StatusUnauthorized, "Base.1.0.NoValidSession", "user or password are wrong, or the session has ended")
		return
	}
	if path == "/redfish/v1/SessionService" || strings.HasPrefix(path, sessionsPath) {
		p.sessionService(w, r, path)
		return
	}
	if system := systemOf(path); system != "" && system != p.system {
		redfishError(w, http.StatusNotFound, "Base.1.0.ResourceMissingAtURI", "no system "+system)
		return
	}
	if r.Method == http.MethodPatch && !p.takeBootURI(w, r) {
		return
	}
	p.backend.ServeHTTP(w, r)
}

// authenticate takes a session's token, which becomes the backend's kind of credentials, or checks user and password.
func (p *redfishProxy) authenticate(r *http.Request) bool {
	token := r.Header.Get("X-Auth-Token")
	if token == "" {
		user, password, ok := r.BasicAuth()
		return ok && user == p.user && password == p.password
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	session, ok := p.sessions[token]
	if !ok || time.Since(session.used) > sessionIdle {
		delete(p.sessions, token)
		return false
	}
	session.used = time.Now()
	p.sessions[token] = session
	r.SetBasicAuth(p.user, p.password)
	return true
}

// openSession is POST to the sessions (Redfish DSP0266, "Session login").
func (p *redfishProxy) openSession(w http.ResponseWriter, r *http.Request, fault BMCFault) {
	var body struct{ UserName, Password string }
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&body); err != nil {
		redfishError(w, http.StatusBadRequest, "Base.1.0.MalformedJSON", err.Error())
		return
	}
	if fault.Kind == FaultRefuse || body.UserName != p.user || body.Password != p.password {
		redfishError(w, http.StatusUnauthorized, "Base.1.0.NoValidSession", "user or password are wrong")
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire()
	if fault.Kind == FaultSessions && len(p.sessions) >= fault.Limit {
		redfishError(w, http.StatusServiceUnavailable, "Base.1.0.SessionLimitExceeded", "the session limit is reached")
		return
	}
	token, id := rand.Text(), rand.Text()[:8]
	p.sessions[token] = redfishSession{id: id, used: time.Now()}
	w.Header().Set("X-Auth-Token", token)
	w.Header().Set("Location", sessionsPath+"/"+id)
	writeJSON(w, http.StatusCreated, p.session(id))
}

// expire forgets sessions that were silent for long; the lock is held.
func (p *redfishProxy) expire() {
	for token, session := range p.sessions {
		if time.Since(session.used) > sessionIdle {
			delete(p.sessions, token)
		}
	}
}

func (p *redfishProxy) session(id string) map[string]any {
	return map[string]any{
		"@odata.type": "#Session.v1_3_0.Session", "@odata.id": sessionsPath + "/" + id, "Id": id, "Name": "Session " + id, "UserName": p.user,
	}
}

// openSessions is how many there are.
func (p *redfishProxy) openSessions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire()
	return len(p.sessions)
}

// sessionService shows and ends sessions.
func (p *redfishProxy) sessionService(w http.ResponseWriter, r *http.Request, path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire()
	id, one := strings.CutPrefix(path, sessionsPath+"/")
	switch {
	case path == "/redfish/v1/SessionService":
		writeJSON(w, http.StatusOK, map[string]any{
			"@odata.type": "#SessionService.v1_1_8.SessionService", "@odata.id": path, "Id": "SessionService", "Name": "Sessions",
			"ServiceEnabled": true, "SessionTimeout": int(sessionIdle.Seconds()), "Sessions": map[string]string{"@odata.id": sessionsPath},
		})
		return
	case !one:
		members := []map[string]string{}
		for _, session := range p.sessions {
			members = append(members, map[string]string{"@odata.id": sessionsPath + "/" + session.id})
		}
		writeJSON(w, http.StatusOK, map[string]any{
			"@odata.type": "#SessionCollection.SessionCollection", "@odata.id": sessionsPath, "Name": "Sessions",
			"Members": members, "Members@odata.count": len(members),
		})
		return
	}
	for token, session := range p.sessions {
		if session.id != id {
			continue
		}
		if r.Method == http.MethodDelete {
			delete(p.sessions, token)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		writeJSON(w, http.StatusOK, p.session(id))
		return
	}
	redfishError(w, http.StatusNotFound, "Base.1.0.ResourceMissingAtURI", "no session "+id)
}

// takeBootURI does itself what sushy-tools can't: it tells the firmware a system's HttpBootUri, and asks sushy-tools for a boot from the network
// instead, because that would load the URI itself and offer it as a CD. It tells whether to go on.
func (p *redfishProxy) takeBootURI(w http.ResponseWriter, r *http.Request) bool {
	text, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return false
	}
	var body map[string]any
	if err := json.Unmarshal(text, &body); err != nil {
		redfishError(w, http.StatusBadRequest, "Base.1.0.MalformedJSON", err.Error())
		return false
	}
	if boot, ok := body["Boot"].(map[string]any); ok {
		uri, _ := boot["HttpBootUri"].(string)
		delete(boot, "HttpBootUri")
		switch target := boot["BootSourceOverrideTarget"]; {
		case target == "UefiHttp":
			boot["BootSourceOverrideTarget"] = "Pxe"
		case target != nil:
			uri = ""
		}
		if err := p.setBoot(r.Context(), uri); err != nil {
			redfishError(w, http.StatusBadRequest, "Base.1.0.ActionNotSupported", err.Error())
			return false
		}
		p.mu.Lock()
		p.bootURI = uri
		p.mu.Unlock()
		if text, err = json.Marshal(body); err != nil {
			return false
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	r.ContentLength = int64(len(text))
	r.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return true
}

// systemOf is the system that a path is below, or empty.
func systemOf(path string) string {
	rest, _ := strings.CutPrefix(path, systemsPath+"/")
	system, _, _ := strings.Cut(rest, "/")
	if rest == path {
		return ""
	}
	return strings.ToLower(system)
}

// amend changes what sushy-tools answers: the root names the session service, the collection holds this system only, and that one tells its
// HttpBootUri and what the fault says.
func (p *redfishProxy) amend(response *http.Response) error {
	path := strings.TrimSuffix(response.Request.URL.Path, "/")
	var change func(map[string]any)
	switch path {
	case serviceRoot:
		change = amendRoot
	case systemsPath:
		change = p.amendSystems
	case systemsPath + "/" + p.system:
		change = p.amendSystem
	}
	if response.StatusCode != http.StatusOK || change == nil {
		return nil
	}
	var body map[string]any
	err := json.NewDecoder(response.Body).Decode(&body)
	response.Body.Close()
	if err != nil {
		return err
	}
	change(body)
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewReader(text))
	response.ContentLength = int64(len(text))
	response.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return nil
}

func amendRoot(body map[string]any) {
	body["SessionService"] = map[string]string{"@odata.id": "/redfish/v1/SessionService"}
	body["Links"] = map[string]any{"Sessions": map[string]string{"@odata.id": sessionsPath}}
}

func (p *redfishProxy) amendSystems(body map[string]any) {
	body["Members"] = []map[string]string{{"@odata.id": systemsPath + "/" + p.system}}
	body["Members@odata.count"] = 1
}

func (p *redfishProxy) amendSystem(body map[string]any) {
	p.mu.Lock()
	uri := p.bootURI
	p.mu.Unlock()
	if boot, ok := body["Boot"].(map[string]any); ok {
		if targets, ok := boot["BootSourceOverrideTarget@Redfish.AllowableValues"].([]any); ok && boot["BootSourceOverrideMode"] == "UEFI" {
			boot["BootSourceOverrideTarget@Redfish.AllowableValues"] = append(targets, "UefiHttp")
		}
		if uri != "" {
			boot["HttpBootUri"], boot["BootSourceOverrideTarget"] = uri, "UefiHttp"
		}
	}
	switch p.fault.get().Kind {
	case FaultSaysOn:
		body["PowerState"] = "On"
	case FaultSaysOff:
		body["PowerState"] = "Off"
	case FaultUnknown:
		body["PowerState"] = nil
	}
}

// redfishError is the body of DSP0266, "Error responses".
func redfishError(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{
		"code": code, "message": message,
		"@Message.ExtendedInfo": []map[string]string{{"MessageId": code, "Message": message}},
	}})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("OData-Version", "4.0")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
