document.getElementById("state").textContent = "gpumem: the page is not built yet";
