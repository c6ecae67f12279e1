package trackers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/runfile"
)

// mlflow asks a tracking server by its REST API, version 2.0.
//
// Source: https://mlflow.org/docs/latest/rest-api.html, with its limits of a request: 1,000 metrics and 100 parameters.
type mlflow struct {
	url        string
	client     *http.Client
	authorize  func(*http.Request)
	experiment string // its name
	name       string // of the run

	id   string           // of the run
	last map[string]int64 // the last step that the server has of each number
}

// Limits of a request, and of an answer.
const (
	mostMetrics     = 1000
	mostPoints      = 256 // steps that are taken from the queue at once
	mostParams      = 100
	maxParamChars   = 500 // of servers before MLflow 2.8; later ones take 6,000
	maxAnswerBytes  = 4 << 20
	requestPatience = 30 * time.Second
)

// refusedError is of a server that answers, and will not do what it is asked to, however often.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// newMLflow is the server at an address, with what the environment has to show it.
func newMLflow(address string) (*mlflow, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	token, user := os.Getenv("MLFLOW_TRACKING_TOKEN"), os.Getenv("MLFLOW_TRACKING_USERNAME")
	m := &mlflow{url: strings.TrimRight(address, "/"), authorize: func(*http.Request) {}, last: map[string]int64{}}
	switch {
	case token == "" && user == "":
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return nil, fmt.Errorf("the environment has a password or token of MLflow, which is not sent to %s over http, where "+
			"others can read it: use https", u.Host)
	case token != "":
		m.authorize = func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	default:
		m.authorize = func(r *http.Request) { r.SetBasicAuth(user, os.Getenv("MLFLOW_TRACKING_PASSWORD")) }
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	m.client = &http.Client{Transport: transport, Timeout: requestPatience, CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}
	return m, nil
}

// isLoopback reports whether a host is this machine.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

func (m *mlflow) close() { m.client.CloseIdleConnections() }

// answerError is an error that the server has answered with.
type answerError struct {
	status int
	code   string // of MLflow
	text   string
}

func (e *answerError) Error() string { return e.text }

// ask asks for a method of the API, with a body or without, and reads the answer. Errors that will not change are
// refusedError, unless the caller knows the code.
func (m *mlflow) ask(ctx context.Context, verb, method string, body, answer any, known ...string) error {
	var doc []byte
	if body != nil {
		var err error
		if doc, err = json.Marshal(body); err != nil {
			return &refusedError{err.Error()}
		}
	}
	req, err := http.NewRequestWithContext(ctx, verb, m.url+"/api/2.0/mlflow/"+method, bytes.NewReader(doc))
	if err != nil {
		return &refusedError{err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	m.authorize(req)
	resp, err := m.client.Do(req)
	if of := (*url.Error)(nil); errors.As(err, &of) {
		err = of.Err // without the method's address
	}
	if err != nil {
		return fmt.Errorf("%s cannot be reached: %w", m.url, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("%s has not answered to the end: %w", m.url, err)
	}
	if resp.StatusCode == http.StatusOK {
		if answer != nil && budget.Unmarshal(text, answer) != nil {
			return &refusedError{m.url + " has not answered as MLflow does: name the address of a tracking server"}
		}
		return nil
	}
	return m.failed(resp.StatusCode, method, text, known)
}

// failed is the error of an answer with another status than 200.
func (m *mlflow) failed(status int, method string, text []byte, known []string) error {
	var said struct {
		Code    string `json:"error_code"`
		Message string `json:"message"`
	}
	_ = budget.Unmarshal(text, &said) // other answers say nothing
	why := terminal.Text(cmp.Or(said.Message, http.StatusText(status)))
	if len(why) > 300 {
		why = strings.ToValidUTF8(why[:300], "") + " ..."
	}
	err := &answerError{status, said.Code, fmt.Sprintf("%s answers %s with %d: %s", m.url, method, status, why)}
	switch {
	case slices.Contains(known, said.Code):
		return err
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return &refusedError{err.text + "; set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and " +
			"MLFLOW_TRACKING_PASSWORD"}
	case status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		return err
	}
	return &refusedError{err.text}
}

// Codes of MLflow's errors.
const (
	codeMissing = "RESOURCE_DOES_NOT_EXIST"
	codeExists  = "RESOURCE_ALREADY_EXISTS"
)

func hasCode(err error, code string) bool {
	answer := (*answerError)(nil)
	return errors.As(err, &answer) && answer.code == code
}

// number is an int64 that a server writes as a number or as a text.
type number int64

// UnmarshalJSON reads both.
func (n *number) UnmarshalJSON(doc []byte) error {
	x, err := strconv.ParseInt(strings.Trim(string(doc), `"`), 10, 64)
	*n = number(x)
	return err
}

type keyValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// experimentID finds the experiment, or makes it.
func (m *mlflow) experimentID(ctx context.Context) (string, error) {
	var found struct {
		Experiment struct {
			ID string `json:"experiment_id"`
		} `json:"experiment"`
	}
	find := func() error {
		return m.ask(ctx, http.MethodGet, "experiments/get-by-name?experiment_name="+url.QueryEscape(m.experiment), nil,
			&found, codeMissing)
	}
	err := find()
	if !hasCode(err, codeMissing) {
		return found.Experiment.ID, err
	}
	var made struct {
		ID string `json:"experiment_id"`
	}
	err = m.ask(ctx, http.MethodPost, "experiments/create", map[string]string{"name": m.experiment}, &made, codeExists)
	if hasCode(err, codeExists) { // another run has made it
		err = find()
		return found.Experiment.ID, err
	}
	return made.ID, err
}

// beginRun makes a run with its parameters.
func (m *mlflow) beginRun(ctx context.Context, own string, params []runfile.FlatValue) error {
	experiment, err := m.experimentID(ctx)
	if err != nil {
		return err
	}
	var made struct {
		Run struct {
			Info struct {
				ID string `json:"run_id"`
			} `json:"info"`
		} `json:"run"`
	}
	err = m.ask(ctx, http.MethodPost, "runs/create", map[string]any{"experiment_id": experiment, "run_name": m.name,
		"start_time": time.Now().UnixMilli(), "tags": []keyValue{{"mlflow.runName", m.name}, {"millrace.run", own},
			{"mlflow.source.name", "millrace"}}}, &made)
	if err != nil {
		return err
	}
	if m.id = made.Run.Info.ID; m.id == "" {
		return &refusedError{m.url + " has not answered as MLflow does: name the address of a tracking server"}
	}
	for chunk := range slices.Chunk(params, mostParams) {
		var all []keyValue
		for _, p := range chunk {
			all = append(all, keyValue{remoteName(p.Key), shortened(p.Text)})
		}
		if err := m.logBatch(ctx, "params", all); err != nil {
			return err
		}
	}
	return nil
}

// continueRun continues a run that the server has. goesOn is false where the server has it no longer, or has numbers of
// steps from first on that the run will not repeat: then another one begins.
func (m *mlflow) continueRun(ctx context.Context, id string, first int64, repeats bool) (goesOn bool, err error) {
	var found struct {
		Run struct {
			Info struct {
				Stage string `json:"lifecycle_stage"`
			} `json:"info"`
			Data struct {
				Metrics []struct {
					Key  string `json:"key"`
					Step number `json:"step"`
				} `json:"metrics"`
			} `json:"data"`
		} `json:"run"`
	}
	err = m.ask(ctx, http.MethodGet, "runs/get?run_id="+url.QueryEscape(id), nil, &found, codeMissing)
	if hasCode(err, codeMissing) || err == nil && found.Run.Info.Stage == "deleted" {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	last := map[string]int64{}
	for _, x := range found.Run.Data.Metrics {
		if int64(x.Step) >= first && !repeats {
			return false, nil
		}
		last[x.Key] = int64(x.Step)
	}
	if err := m.update(ctx, id, map[string]any{"status": "RUNNING"}); err != nil {
		return false, err
	}
	m.id, m.last = id, last
	return true, nil
}

func (m *mlflow) update(ctx context.Context, id string, what map[string]any) error {
	what["run_id"] = id
	return m.ask(ctx, http.MethodPost, "runs/update", what, nil)
}

// logBatch sends params or metrics.
func (m *mlflow) logBatch(ctx context.Context, what string, all any) error {
	return m.ask(ctx, http.MethodPost, "runs/log-batch", map[string]any{"run_id": m.id, what: all}, nil)
}

// end tells how the run has ended.
func (m *mlflow) end(ctx context.Context, how Ending) error {
	status := map[Ending]string{Done: "FINISHED", Stopped: "KILLED", Failed: "FAILED"}[how]
	return m.update(ctx, m.id, map[string]any{"status": status, "end_time": time.Now().UnixMilli()})
}

// metric is a number in a request.
type metric struct {
	Key       string  `json:"key"`
	Value     float64 `json:"value"`
	Timestamp int64   `json:"timestamp"` // milliseconds since 1970
	Step      int64   `json:"step"`
}

// log sends points, without numbers that are not finite, and those of steps that the server has.
func (m *mlflow) log(ctx context.Context, points []point) error {
	var all []metric
	for _, p := range points {
		for _, x := range p.numbers {
			name := remoteName(x.Tag)
			if last, has := m.last[name]; has && p.step <= last || math.IsNaN(x.Value) || math.IsInf(x.Value, 0) {
				continue
			}
			all = append(all, metric{name, x.Value, p.unixMs, p.step})
		}
	}
	for chunk := range slices.Chunk(all, mostMetrics) {
		if err := m.logBatch(ctx, "metrics", chunk); err != nil {
			return err
		}
		for _, x := range chunk {
			m.last[x.Key] = x.Step
		}
	}
	return nil
}

// remoteName is a name with the characters that MLflow takes: letters, digits, and _ - . / and blanks. Brackets of
// lists become points.
func remoteName(name string) string {
	name = strings.NewReplacer("[", ".", "]", "").Replace(name)
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("_-./ ", r):
			return r
		}
		return '_'
	}, name)
}

// shortened is a value that is not longer than a parameter may be.
func shortened(value string) string {
	if r := []rune(value); len(r) > maxParamChars {
		return string(r[:maxParamChars-3]) + "..."
	}
	return value
}
