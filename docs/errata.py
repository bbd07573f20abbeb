"""Show an erratum of the paper in numbers: `python docs/errata.py 3`, or all."""

import sys
from collections.abc import Callable

import numpy as np

import fedbudget as fb
from fedbudget.data.adult import load_adult
from fedbudget.planning.bounds import noise_floor, paper_bound, sound_bound
from fedbudget.planning.spectral import Schedule, Spectrum, respond
from fedbudget.privacy import GDP, ZCDP, NoisyGradients, rho_from_epsilon, rounded_up

LOG = np.log(1e4)  # log(1/delta) at the paper's delta
SHOWN: dict[int, Callable[[], None]] = {}


def erratum(number: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the function that shows erratum `number`."""

    def register(show: Callable[[], None]) -> Callable[[], None]:
        SHOWN[number] = show
        return show

    return register


@erratum(1)
def wrong_root() -> None:
    """opt_sigma and Z: the printed noise is not private."""
    for epsilon in (1, 2, 4, 10):
        root = np.sqrt(LOG**2 + epsilon * LOG)
        for sign, z in (("+", epsilon + 2 * LOG + 2 * root), ("-", None)):
            rho = float(rho_from_epsilon(epsilon, 1e-4)) if z is None else z
            run = NoisyGradients(
                lipschitz=1, batch_size=1, noise_std=np.sqrt(200 / rho), steps=100
            )
            spent = float(GDP.epsilon(run, delta=1e-4))
            shown = f"requested epsilon {epsilon:2d}, root {sign}"
            print(f"{shown}: spends {rounded_up(spent)}")


@erratum(2)
def rounding() -> None:
    """Rounding K and tau to the nearest whole numbers overspends."""
    over = []
    for cost in np.linspace(300, 1000, 71):
        for steps in np.linspace(20, 150, 66):
            k, tau = round(steps), max(1, round(100 * steps / (cost - steps)))
            over.append(100 * k / tau + k > cost)
    print("K* = 60.4 at C = 1000: K = 60, tau = 6 costs", 100 * 60 // 6 + 60)
    print(
        f"over many K* and C, rounding overspends in {np.mean(over):.0%} of the cases"
    )


@erratum(3)
def bound_below_truth() -> None:
    """conv_bound: the 1/K is not sound."""
    one = fb.Constant(value=1.0, source="assumed")
    half = fb.Constant(value=0.5, source="assumed")
    problem = fb.Problem(num_samples=[1], dim=1).with_constants(
        smoothness=one, strong_convexity=one, initial_gap=half
    )
    printed = paper_bound(problem, 10, 0.01, 0.0)
    sound = float(sound_bound(problem, np.array(10.0), np.array(0.01), np.array(0.0)))
    print(f"x^2/2, eta = 0.01, K = 10: true gap {0.99**20 / 2:.3f}")
    print(f"printed bound {printed:.3f}, sound bound {sound:.3f}")


@erratum(4)
def zcdp_factor() -> None:
    """zcdp-bound lacks a factor alpha in the exponent."""
    x = np.linspace(-20, 25, 1_000_001)
    rho, alpha = 0.5, 3.0  # a Gaussian with sensitivity 1 and std 1
    density = np.exp(-((x - 1) ** 2) / 2) / np.sqrt(2 * np.pi)
    moment = np.sum(density * np.exp((alpha - 1) * (x - 0.5))) * (x[1] - x[0])
    print(f"Gaussian with rho = 0.5: E exp(2 Z) = {moment:.2f}")
    print(
        f"printed bound exp(2 rho) = {np.exp(2 * rho):.2f}, "
        f"with the factor exp(2 * 3 rho) = {np.exp(2 * 3 * rho):.2f}"
    )


@erratum(5)
def no_heterogeneity() -> None:
    """The bound has no term for heterogeneous devices."""
    problem = fb.Problem(num_samples=[1, 1], dim=1)
    optimum = (1 * 1 + 4 * -1) / 5  # of the mean of (x-1)^2/2 and 4 (x+1)^2/2
    for tau in (1, 20):
        x = 0.0
        for _ in range(2000):
            local = np.array([x, x])
            for _ in range(tau):
                local -= 0.02 * np.array([1.0, 4.0]) * (local - np.array([1.0, -1.0]))
            x = float(local.mean())
        gap = 0.5 * 2.5 * (x - optimum) ** 2
        bound = float(noise_floor(problem, tau, 0.02, (0.0, 0.0)))  # after many steps
        print(
            f"two heterogeneous devices, no noise, tau = {tau:2d}: gap {gap:.4f}, "
            f"bound {bound:.4f}"
        )


@erratum(6)
def best_iterate() -> None:
    """theta*, the best of K iterates, reads private rows without noise."""
    iterates = np.array([-1.0, 1.0])  # released with noise, the same for both data sets
    for name, rows in (("D ", [-1.0, 0.9]), ("D'", [-1.0, 1.1])):
        losses = [np.mean((theta - np.array(rows)) ** 2) for theta in iterates]
        print(f"{name} = {rows}: the best iterate is number {int(np.argmin(losses))}")
    print("one sample changes it with certainty: no epsilon covers that")


@erratum(7)
def constants() -> None:
    """L, lambda, xi^2 and alpha must be derived or assumed before reading data."""
    for loss in ("logistic", "softmax", "hinge"):
        problem = fb.Problem(num_samples=[100], dim=102, loss=loss)
        for name in ("lipschitz", "smoothness", "initial_gap"):
            print(f"{loss:>8} {name}: {problem.constants[name]}")


@erratum(8)
def empty_range() -> None:
    """The grid search starts at K = 200, more than C pays for with tau <= 20."""
    longest = max(1000 / (100 / tau + 1) for tau in range(1, 21))
    print(f"largest K for C = 1000 and tau <= 20: {int(longest)}")


@erratum(9)
def batch_size() -> None:
    """X_m is never given, and the noise is proportional to 1/X_m."""
    for size in (32, 256, 1628):
        noise = ZCDP.noise_std(
            lipschitz=1, batch_size=size, epsilon=1, delta=1e-4, steps=50
        )
        print(f"X_m = {size:4d}: sigma_m = {float(noise):.4f}")


@erratum(10)
def adult_sizes() -> None:
    """Adult-1's standard deviation and mean belong to different rows."""
    for files in ("train", "both"):
        data = load_adult(split="by-education", files=files)
        sizes = data.train.sizes + data.validation.sizes + data.test.sizes
        print(
            f"{files:>5} files: {sizes.sum()} rows, mean {sizes.mean():.0f}, "
            f"std {sizes.std():.0f}"
        )


@erratum(11)
def fixed_rate() -> None:
    """Progress and noise depend on eta K: eta is the missing variable."""
    spectrum = Spectrum.of(fb.Problem(num_samples=[1628] * 16, dim=102))
    for eta, steps in ((0.5, 160), (1, 80), (2, 40), (4, 20)):
        schedule = Schedule(
            tau=np.ones(1),
            rounds=np.array([float(steps)]),
            learning_rate=np.array([float(eta)]),
            momentum=np.zeros(1),
        )
        response = respond(spectrum, schedule, variance=1.0)
        noise = float(response.noise[0]) * steps  # sigma^2 grows with K
        print(
            f"eta = {eta:3g}, K = {steps:3d}: progress not made "
            f"{float(response.remaining[0]):.3f}, noise {noise:.0f} (times sigma_1^2)"
        )


@erratum(12)
def uniform_weights() -> None:
    """With 1/M weights the noise of the smallest device dominates."""
    data = load_adult(split="by-education")
    n = (data.train.sizes + data.validation.sizes + data.test.sizes).astype(float)

    def noise(weights: np.ndarray) -> float:
        return float(np.sum((weights / weights.sum() / n) ** 2))

    shares = [noise(w) / noise(n) for w in (np.ones(len(n)), n, n**2)]
    print(
        "noise variance, uniform : by size : inverse variance = "
        f"{shares[0]:.0f} : {shares[1]:.0f} : {shares[2]:.2f}"
    )


if __name__ == "__main__":
    for number in [int(word) for word in sys.argv[1:]] or SHOWN:
        print(f"Erratum {number}: {SHOWN[number].__doc__}")
        SHOWN[number]()
        print()
